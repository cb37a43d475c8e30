# Banned calls, by name, outside comments and strings. First file: lib/base/banned.h, which has the list. Also: lib/
# never prints, exits or aborts; base's log and help are where words come out.
FILENAME ~ /banned\.h$/ {
    if ($1 == "#pragma") for (i = 4; i <= NF; i++) banned[$i] = 1
    next
}
FNR == 1 {
    comment = 0
    split("exit _exit abort perror printf puts putchar fputs fprintf vprintf vfprintf", w, " ")
    split("", loud)
    if (FILENAME ~ /^lib\// && FILENAME !~ /^lib\/base\/(log|opt_help)\.c$/) for (i in w) loud[w[i]] = 1
}
{
    line = $0
    if (comment) { if (sub(/^.*\*\//, "", line)) comment = 0; else next }
    gsub(/\\./, "", line); gsub(/"[^"]*"/, "", line); gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
    if (sub(/\/\*.*/, "", line)) comment = 1
    while (match(line, /[A-Za-z_][A-Za-z_0-9]*[ ]*\(/)) {
        name = substr(line, RSTART, RLENGTH); sub(/[ ]*\($/, "", name)
        before = substr(line, 1, RSTART - 1); line = substr(line, RSTART + RLENGTH)
        if (before ~ /(->|\.)$/) continue
        if (name in banned) { print FILENAME ":" FNR ": " name " is banned"; bad = 1 }
        if (name in loud) { print FILENAME ":" FNR ": lib/ does not call " name; bad = 1 }
    }
}
END { exit bad }
