#!/usr/bin/env bats
# The build file as a user meets it: what it says of itself, installing, and looking without touching.
load ../helper/common

# The build under test is there: nothing is built here.
mk() {
    make -s --no-print-directory -C "$CART_ROOT" -o all MODE="$(basename "$(dirname "$CART_BIN")")" "$@"
}

@test "make help has a line for every goal" {
    mk help > words
    sed -n '/^\.PHONY:/,/[^\\]$/p' "$CART_ROOT/GNUmakefile" | tr -d '\\' | tr ' ' '\n' |
        grep -xE '[a-z][a-z0-9-]*' > goals
    [ "$(wc -l < goals)" -ge 15 ]
    while read -r goal; do
        grep -q "^make $goal " words || { echo "make help: no $goal" >&2; return 1; }
    done < goals
    cart_has words 'DEVELOPER=1'
}

@test "make install puts everything under DESTDIR, make uninstall takes it away" {
    cart_need_tool mandoc
    mk DESTDIR="$PWD/my dest" PREFIX=/opt/cart install
    root="my dest/opt/cart"
    "$root/bin/cart-view" -h > /dev/null
    cart_equal "$(cd "$CART_ROOT" && printf '%s\n' tools/cart-*.c | wc -l)" "$(ls "$root/bin" | wc -l)"
    cart_equal "$(cd "$CART_ROOT/man" && ls *.[157])" "$(cd "$root/share/man" && ls man1 man5 man7 | grep -E '\.[157]$' | LC_ALL=C sort)"
    [ -f "$root/share/cart/pipelines/cartridge.mk" ]
    [ -x "$root/share/cart/examples/demo.sh" ]
    # What somebody else put there stays, and with it the folders it is in.
    echo mine > "$root/share/cart/examples/manual/notes.md"
    mk DESTDIR="$PWD/my dest" PREFIX=/opt/cart uninstall
    cart_equal "$root/share/cart/examples/manual/notes.md" "$(find 'my dest' ! -type d)"
    cart_equal "$root $root/share $root/share/cart $root/share/cart/examples $root/share/cart/examples/manual" \
        "$(find "$root" -type d | sort | xargs -d '\n')"
    rm "$root/share/cart/examples/manual/notes.md"
    mk DESTDIR="$PWD/my dest" PREFIX=/opt/cart uninstall
    cart_equal '' "$(find "$root" 2> /dev/null)" 'what uninstall leaves'
}

@test "make -n shows and touches nothing; a mode that does not exist is named" {
    mk -n demo > words
    cart_has words 'examples/demo.sh'
    cart_must_fail 2 make -s -C "$CART_ROOT" MODE=fast help 2> words
    cart_has words 'MODE=fast: expected release'
}

# A system with a shell, nothing to build with, and an apt that knows what the file known lists and installs nothing.
bare_system() {
    mkdir bin
    for c in bash env grep sort head cat; do ln -s "$(command -v $c)" bin/$c; done
    printf '#!/bin/bash\necho 0\n' > bin/id
    printf '#!/bin/bash\ngrep -qx -- "$2" %q/known\n' "$PWD" > bin/apt-cache
    printf '#!/bin/bash\necho "$*" >> %q/log\n' "$PWD" > bin/apt-get
    chmod +x bin/*
    printf '%s\n' gcc libc6-dev bats > known
    deps() { env -i PATH="$PWD/bin" "$@" bash "$CART_ROOT/tests/helper/deps" build check; }
}

@test "make deps asks apt for what is missing, once, and leaves out what apt does not have and the tests do without" {
    bare_system
    cart_must_fail 5 deps CART_NO_INSTALL=1 2> words
    cart_has words 'missing, and CART_NO_INSTALL=1: gcc make libc6-dev'
    cart_must_fail 1 grep -q clang-format words
    [ ! -e log ]
    cart_must_fail 5 deps 2> words
    cart_equal update "$(head -n 1 log)"
    cart_equal 2 "$(wc -l < log)"
    grep -q '^install -y --no-install-recommends gcc make .*libmicrohttpd-dev bats' log
    cart_must_fail 1 grep -q clang-format log
    cart_has words 'gcc is installed, but does not work'
    # Lists that have everything need no refresh.
    sed -n 's/^install -y --no-install-recommends //p' log | tr ' ' '\n' > known
    echo clang-format-14 >> known
    rm log
    cart_must_fail 5 deps 2> words
    cart_equal 1 "$(wc -l < log)"
    grep -q 'clang-format-14' log
    rm bin/apt-get log
    cart_must_fail 5 deps 2> words
    cart_has words 'this system has no apt-get. Install what Debian calls: gcc'
    [ ! -e log ]
}
