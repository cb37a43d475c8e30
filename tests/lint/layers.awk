# Who may include whom (lib/README.md): a room sees rooms on lower levels and itself, third-party headers have one owner
# each, and *_impl.h stays inside its room. Prints one line for each forbidden include; exits 1 if there was one.
BEGIN {
    split("base 0 stream 1 format 1 token 1 tensor 1 model 2 cartridge 3 engine 4 study 5 serve 7", w, " ")
    for (i = 1; i in w; i += 2) level[w[i]] = w[i + 1]
    split("cblas tensor lapack tensor lapacke tensor openblas tensor zstd stream archive format archive_entry format " \
          "utf8proc token pcre2 token xxhash base nettle base zlib base jansson base microhttpd serve", w, " ")
    for (i = 1; i in w; i += 2) owner[w[i]] = w[i + 1]
}
FNR == 1 {
    split(FILENAME, part, "/")
    room = part[1] == "lib" ? part[2] : "tools"
    if (room != "tools" && !(room in level)) { print FILENAME ": room " room " is not in the map"; bad = 1 }
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    name = $0; sub(/^[^<]*</, "", name); sub(/[\/.>].*/, "", name)
    if (name in owner && owner[name] != room) {
        print FILENAME ":" FNR ": <" name "> is seen by " owner[name] " only"; bad = 1
    }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0; sub(/^[^"]*"/, "", path); sub(/".*/, "", path)
    target = path; sub(/\/.*/, "", target)
    if (path !~ /\//) { print FILENAME ":" FNR ": \"" path "\" is not written from lib/"; bad = 1 }
    else if (!(target in level)) { print FILENAME ":" FNR ": no room " target; bad = 1 }
    else if (target != room && room != "tools" && level[target] >= level[room]) {
        print FILENAME ":" FNR ": " room " may not know " target; bad = 1
    }
    if (path ~ /_impl\.h$/ && target != room) {
        print FILENAME ":" FNR ": \"" path "\" is private to " target; bad = 1
    }
}
END { exit bad }
