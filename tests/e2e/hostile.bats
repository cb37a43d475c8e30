#!/usr/bin/env bats
# Archives, JSON Lines and trees that mean harm, or only look like it, and what cart-tokenize makes of them: the rules of
# its manual. tests/helper/hostile.py makes the files.
load ../helper/common

setup_file() {
    command -v python3 > /dev/null || return 0
    mkdir -p "$BATS_FILE_TMPDIR/h" && cd "$BATS_FILE_TMPDIR/h" && python3 "$CART_ROOT/tests/helper/hostile.py"
}

setup() {
    cart_setup
    cart_need_tool python3 jq
    cart_tiny qwen3
    ln -s "$BATS_FILE_TMPDIR"/h/* .
}

# within KIB COMMAND...: in so much address space, except under the sanitizers, which take it all.
within() {
    (
        [ "${CART_SANITIZED:-0}" = 1 ] || ulimit -v "$1"
        shift
        "$@"
    )
}

# takes WANT FILE: the documents of FILE, as "path bytes" lines; what was passed over is in err.
takes() {
    cart-tokenize --count "$2" 2> err | jq -r '"\(.path) \(.bytes)"' > found
    diff - found <<< "$1"
    [ ! -e ../out.txt ] && [ ! -e ../../out.txt ]
}

# refused WORDS FILE: status 3, one line of words, no document lost in silence: no output either.
refused() {
    cart_must_fail 3 cart-tokenize -q -o out.tokens "$2" 2> err
    cart_equal 1 "$(wc -l < err)" lines
    cart_has err "cart-tokenize: $1"
    [ ! -e out.tokens ]
}

@test "bombs: total and ratio are capped, whatever the packer, and memory stays small" {
    local f
    for f in ratio.gz ratio.zip ratio.tar.xz ratio.tar.bz2 sparse.tar; do
        within 400000 refused "$f: archive: expected to unpack to at most 200 times its $(stat -Lc %s $f) bytes, found more" $f
    done
}

@test "headers that lie, and huge ones" {
    takes 'greedy.xz 17' greedy.xz
    refused 'huge-header.tar: archive: ' huge-header.tar
    refused 'size-lie.tar: archive: ' size-lie.tar
    # 542 bytes are missing, among them the header of a member that would be passed over in silence.
    mkdir t && printf one > t/a && printf two > t/b && printf three > t/c
    tar -cf whole.tar -C t a b c
    { head -c 1990 whole.tar && tail -c +2533 whole.tar; } > lost.tar
    takes 'whole.tar/a 3
whole.tar/b 3
whole.tar/c 5' whole.tar
    refused "lost.tar: archive: expected a tar of whole blocks of 512 bytes, found $(stat -c %s lost.tar) bytes" lost.tar
    refused 'stored-lie.zip: archive: ' stored-lie.zip
    cart-tokenize -q --count long-name.tar | jq -e '.path | endswith("/d/deep.txt") and length > 6000'
}

@test "names that lead out of the folder are only names" {
    takes 'traversal.tar/../../out.txt 17
traversal.tar/a/../../out.txt 6
traversal.tar//etc/passwd 9' traversal.tar
    takes 'traversal.zip/../out.txt 17
traversal.zip//abs.txt 9
traversal.zip/../win.txt 5' traversal.zip
}

@test "links and devices in an archive are passed over, not followed" {
    takes 'links.tar/target 17
links.tar/sym/inner 14' links.tar
    for m in sym hard fifo dev; do cart_has err "links.tar/$m: passed over: no regular member"; done
    cart_has err 'passed over 4: 2 linked, 2 no regular file'
}

@test "names of any bytes stay one line, and are told apart" {
    takes 'names.tar/caf\xe9.txt 17
names.tar/new\x0aline.txt 4
names.tar/esc\x1b[2J.txt 6' names.tar
    takes 'duplicate.tar/same.txt 4
duplicate.tar/same.txt 4' duplicate.tar
}

@test "encrypted, nested and empty archives" {
    refused 'expected a document, found none: encrypted.zip/secret.txt: encrypted: unpack it first' encrypted.zip
    takes 'nested.tar/ok.txt 17' nested.tar
    cart_has err 'passed over 3: 3 nested'
    refused 'expected a document, found none: empty.tar: NUL bytes only, as an archive without members' empty.tar
    refused 'expected a document, found none: empty.zip: an archive without members' empty.zip
    refused 'expected a document, found none: empty.tar.gz: NUL bytes only, as an archive without members' empty.tar.gz
}

@test "thousands of members" {
    cart-tokenize -q -o m.tokens many.zip
    cart_equal 5000 "$(cart-view m.tokens | jq 'select(.record == "end").records')"
}

@test "an archive cut off is refused, wherever it is cut" {
    local f size n
    refused 'truncated.tar: archive: ' truncated.tar
    refused 'truncated.zip: archive: ' truncated.zip
    refused 'truncated.tar.gz: expected the end of gzip data, found the end of the file' truncated.tar.gz
    for f in nested.tar traversal.zip; do
        size=$(stat -Lc %s $f)
        for n in 1 9 30 100 700 $((size / 2)); do
            head -c $n $f > cut
            local status=0
            timeout 20 cart-tokenize -q -o out.tokens cut 2> err || status=$?
            case $status in 0 | 3) ;; *) cat err; false ;; esac
            [ $status = 0 ] || [ ! -e out.tokens ]
            rm -f out.tokens
        done
    done
}

@test "JSON Lines with odd lines: each is taken or passed over with its place" {
    takes 'odd.jsonl:1 12
odd.jsonl:2 15
odd.jsonl:5 3
odd.jsonl:9 5
odd.jsonl:10 9
odd.jsonl:11 6
odd.jsonl:24 11' odd.jsonl
    cart-tokenize -q --count odd.jsonl | jq -r .id > ids
    diff - ids <<< $'bom\ncrlf\nnul\nodd.jsonl:9\n7\nodd.jsonl:11\nlast'
    diff - <(sed -n 's/^cart-tokenize: warning: odd.jsonl:\([0-9]*\): passed over: \(.*\)/\1 \2/p' err) <<'WORDS'
6 expected an id without NUL
7 JSON: column 11: expected the end of a string, found '\x00nul","text":"x"}'
8 expected an object with a string "text", found only id
12 JSON: column 27: expected no duplicate key, found 'text":"second"}'
13 JSON: column 26: expected four hexadecimal digits, surrogates in pairs, found 'd800 surrogate"}'
14 JSON: column 159: expected at most 128 lists in each other, found '[[[[[[[[[[[[[[[[[[[['
15 expected an object with a string "text", found another type
16 expected an object with a string "text", found another type
17 expected an object with a string "text", found no object
18 expected an object with a string "text", found no object
19 JSON: column 1: expected a value, found 'text'
20 it is empty
21 JSON: column 23: expected UTF-8, found '\xff byte"}'
22 JSON: column 27: expected nothing more, found '{}'
23 JSON: column 28: expected an integer of 64 bits, found '10000000000000000000'
WORDS
    cart_must_fail 3 cart-tokenize -q --invalid fail odd.jsonl 2> err
    cart_has err 'cart-tokenize: odd.jsonl:6: expected an id without NUL'
    refused 'expected at least one document, found none' bom-first.jsonl
}

@test "a line of 100 MB passes by within bounds of memory" {
    within 300000 cart-tokenize --count --max-document 1M long.jsonl 2> err > counts
    jq -r .id counts > ids
    diff - ids <<< $'before\nafter'
    cart_has err 'long.jsonl:2: passed over: expected at most 1048576 bytes, found more'
}

@test "trees: deep ones, odd names, links in a circle, sockets and devices" {
    python3 - <<'PY'
import os, socket
os.mkdir("deep")
fd = os.open("deep", os.O_RDONLY)
for i in range(30):
    os.mkdir("d" * 200, dir_fd=fd)
    down = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    fd = down
os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
os.mkdir("odd")
for i, name in enumerate((b"new\nline", b"caf\xe9", b"esc\x1b[2J")):
    with open(b"odd/" + name, "w") as f:
        f.write("text" * (i + 1))
os.symlink("loop", "odd/loop")
os.mkfifo("odd/fifo")
socket.socket(socket.AF_UNIX).bind("odd/sock")
PY
    cart_must_fail 5 cart-tokenize -q -o out.tokens deep 2> err
    cart_equal 1 "$(wc -l < err)" lines
    grep -qE '^cart-tokenize: deep/d{75}\.\.\. \([0-9]+ bytes\): File name too long$' err
    takes 'odd/caf\xe9 8
odd/esc\x1b[2J 12
odd/new\x0aline 4' odd
    cart_equal 0 "$(grep -c $'\x1b' err)" 'escapes'
    cart_has err 'odd/loop: passed over: a symbolic link inside a directory'
    cart_has err 'odd/sock: passed over: no regular file'
    cart_has err 'odd/fifo: passed over: no regular file'
    cart_must_fail 5 cart-tokenize -q odd/loop 2> err
    cart_equal 'cart-tokenize: odd/loop: Too many levels of symbolic links' "$(cat err)"
    refused 'expected a document, found none: odd/sock: no regular file' odd/sock
    refused 'expected a document, found none: /dev/zero: no regular file' /dev/zero
    cart_must_fail 2 cart-tokenize -q '' 2> err
    cart_equal 'cart-tokenize: expected the name of a file, found an empty one' "$(cat err)"
    find deep -depth -delete
}

@test "a folder or file that may not be read is an error, not an omission" {
    mkdir locked
    echo text > locked/x
    chmod 755 .
    chmod 000 locked/x
    local as=()
    [ "$(id -u)" != 0 ] || as=(setpriv --reuid=65534 --clear-groups)
    "${as[@]}" test -x "$CART_BIN/cart-tokenize" -a -x . || skip 'machine: another user cannot enter this folder'
    cart_must_fail 5 "${as[@]}" cart-tokenize -q locked 2> err
    cart_equal 'cart-tokenize: locked/x: Permission denied' "$(cat err)"
    chmod 000 locked
    cart_must_fail 5 "${as[@]}" cart-tokenize -q locked 2> err
    cart_has err 'cart-tokenize: locked'
    cart_has err 'Permission denied'
    chmod 755 locked
}

@test "a mapped file that becomes shorter while it is read: one line and status 6" {
    python3 - <<'PY'
import json, struct
n = 1 << 21
head = json.dumps({"x": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode()
head += b" " * (-len(head) % 8)
open("big.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(4 * n))
PY
    mkfifo lines
    cart-view --data big.safetensors > lines 2> err &
    # Nothing is read before the listing's first bytes are there and the file has been cut.
    exec 7< lines
    head -c 10 <&7 > /dev/null
    truncate -s 4096 big.safetensors
    cat <&7 > /dev/null
    local status=0
    wait $! || status=$?
    case $status in
        6) cart_equal 'cart-view: a file became shorter while it was read' "$(cat err)" ;;
        *) cat err; false ;;
    esac
}
