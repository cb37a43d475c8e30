# Loaded by every bats file with `load ../helper/common`. Tools are called by name; each test runs in its own empty
# folder (BATS_TEST_TMPDIR), removed afterwards.
#   CART_ROOT    the repository           CART_BIN   the folder of the tools under test (first on PATH)
#   CART_SHARED  the folder that holds data/ (default ../shared)
#   CART_TINY    tiny random models, one of each family; larger ones are only under CART_SHARED

CART_ROOT=${CART_TEST_ROOT:-$(cd "$BATS_TEST_DIRNAME" && git rev-parse --show-toplevel 2>/dev/null)}
[ -n "$CART_ROOT" ] || CART_ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
CART_BIN=${CART_BIN:-$CART_ROOT/build/release/bin}
CART_SHARED=${CART_SHARED:-$CART_ROOT/../shared}
CART_TINY=$CART_ROOT/tests/golden/tiny
export CART_ROOT CART_BIN CART_SHARED CART_TINY
PATH=$CART_BIN:$PATH
# What a developer has set must not decide a test.
unset CART_MODEL CART_TRACE CART_TRACE_RUN MAKEFLAGS MAKELEVEL
export LC_ALL=C.UTF-8
# A program under test that fails left of a pipe fails the test. So nothing here stops reading early (head) unless the
# test is about that.
set -o pipefail

cart_setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

# A file that needs more defines its own setup and calls cart_setup first.
setup() {
    cart_setup
}

# cart_must_fail STATUS COMMAND...: succeeds if the command exits with exactly STATUS. A crash, a signal, success or
# any other status fails the test and says so.
cart_must_fail() {
    local expected=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" -eq "$expected" ] && return 0
    if [ "$status" -gt 128 ]; then
        echo "killed by signal $((status - 128)): $*" >&2
    else
        echo "expected exit status $expected, found $status: $*" >&2
    fi
    return 1
}

# cart_unread COMMAND...: the command writes into a pipe that nobody reads any more. Its status is that of the command.
cart_unread() {
    local reader writer status=0
    mkfifo unread
    exec {reader}<>unread {writer}>unread {reader}>&-
    rm unread
    "$@" >&"$writer" {writer}>&- || status=$?
    exec {writer}>&-
    return $status
}

# cart_equal EXPECTED FOUND [WHAT]: two strings.
cart_equal() {
    [ "$1" = "$2" ] && return 0
    printf '%s: expected <%s>, found <%s>\n' "${3:-value}" "$1" "$2" >&2
    return 1
}

# cart_has FILE TEXT: FILE contains the literal text.
cart_has() {
    grep -qF -e "$2" -- "$1" && return 0
    printf '%s: expected <%s> in it, found:\n' "$1" "$2" >&2
    head -n 20 -- "$1" >&2
    return 1
}

# cart_need FILE...: skips the test where test data are absent; with CART_REQUIRE_DATA=1 it fails instead.
cart_need() {
    local f
    for f in "$@"; do
        [ -e "$f" ] && continue
        if [ "${CART_REQUIRE_DATA:-0}" = 1 ]; then
            echo "CART_REQUIRE_DATA=1, but $f is absent" >&2
            return 1
        fi
        skip "data: ${f##*/} is absent"
    done
}

# cart_tiny NAME: sets CART_MODEL to the tiny model of that name (the file without .gguf), from the repository or, for
# the larger ones, from the shared data.
cart_tiny() {
    CART_MODEL=$CART_TINY/$1.gguf
    if [ ! -e "$CART_MODEL" ]; then
        CART_MODEL=$CART_SHARED/data/tiny-models/$1.gguf
        cart_need "$CART_MODEL" || return 1
    fi
    export CART_MODEL
}

# cart_need_tool COMMAND...: for what a test uses beside the tools (jq, python3). make check has installed them.
cart_need_tool() {
    local t
    for t in "$@"; do
        command -v "$t" >/dev/null || skip "machine: $t is not installed"
    done
}

# cart_man_synopsis PAGE and cart_help_usage TOOL: the same words, blanks normalised, or the manual is wrong.
cart_man_synopsis() {
    mandoc -T utf8 -O width=200 "$1" | col -bx |
        awk '/^SYNOPSIS/ { on = 1; next } /^[A-Z]/ { on = 0 } on' | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'
}

cart_help_usage() {
    "$1" -h | awk 'NR == 1 { sub(/^usage: /, "") } /^$/ { exit } { print }' | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'
}
