# Budgets: .c and *_impl.h 800 lines, header 200, tool 400, function 80. A file over its budget says why in its first twenty lines,
# with the word "budget".
function close_file() {
    if (name == "" || excused) return
    limit = name ~ /^tools\// ? 400 : name ~ /\.h$/ && name !~ /_impl\.h$/ ? 200 : 800
    if (lines > limit) { print name ": " lines " lines (budget " limit ")"; bad = 1 }
}
FNR == 1 { close_file(); name = FILENAME; excused = 0; start = 0 }
FNR <= 20 && /budget/ { excused = 1 }
/^[a-z].*\(/ && !/;$/ { head = $0; sub(/\(.*/, "", head); sub(/.*[ *]/, "", head) }
/^\{/ { start = FNR }
/^\}/ { if (start && FNR - start - 1 > 80) { print FILENAME ":" start ": " head " has " FNR - start - 1 " lines (budget 80)"; bad = 1 }; start = 0 }
{ lines = FNR }
END { close_file(); exit bad }
