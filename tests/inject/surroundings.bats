#!/usr/bin/env bats
# What a run meets outside itself: a disk that fills up, a folder that may not be written, a directory where its output
# belongs, signals, a reader that leaves, another run with the same output.

load ../helper/common
load ../helper/study

IN=$BATS_FILE_TMPDIR
TOOLS='cart-tokenize cart-selfstudy cart-teacher cart-train cart-view'

# run_tool TOOL OUTPUT [--resume]: one run of the tool on the small inputs; - is standard output.
run_tool() {
    local more=()
    case $1 in
        cart-tokenize) cart-tokenize -q -o "$2" "$IN/docs.txt" ;;
        cart-view) cart-view -q --data -o "$2" "$IN/c.cart" ;;
        cart-selfstudy)
            cart-selfstudy -q -j 1 -n 24 --held-out 4 --max-a 20 --max-q 12 --chunk 32:64 --context chunk --seed 3 \
                ${3:+"$3"} -o "$2" "$IN/c.tokens" ;;
        cart-teacher) cart-teacher -q -j 1 ${3:+"$3"} -o "$2" "$IN/c.conv" ;;
        cart-train)
            [ "$2" = - ] || more=(--save-every 2)
            cart-train -q -j 1 -p 48 --steps 10 "${more[@]}" ${3:+"$3"} -o "$2" "$IN/c.targets" ;;
    esac
}

# resumable TOOL: the option that goes on from what a run left behind.
resumable() {
    case $1 in cart-tokenize | cart-view) ;; *) echo --resume ;; esac
}

setup_file() {
    cart_tiny llama_tied
    cart_study_streams || return 1
    cd "$IN" || return 1
    for _ in $(seq 40); do cat c.txt; done > docs.txt
    cart-init -q -p 48 -o c.cart c.tokens
    for t in $TOOLS; do
        run_tool "$t" "want.$t" || return 1
    done
}

setup() {
    cart_setup
    cart_tiny llama_tied
}

# in_namespace COMMAND...: with mounts of its own, as root of it.
in_namespace() {
    local how=-m
    [ "$(id -u)" = 0 ] || how=-rm
    unshare $how true 2> /dev/null || skip 'machine: no mounts without root or user namespaces'
    unshare $how "$BASH" -c "$1" "$BASH" "${@:2}"
}

# nothing_but NAME...: the present folder holds only some of these, by glob.
nothing_but() {
    local f name ok
    for f in $(ls -A); do
        ok=
        for name in "$@"; do
            # shellcheck disable=SC2053
            [[ $f == $name ]] && ok=1
        done
        [ -n "$ok" ] || { echo "litter: $f" >&2; return 1; }
    done
}

# whole_or_absent TOOL: out is what a run without disturbance makes, or is not there.
whole_or_absent() {
    [ ! -e out ] || cmp "$IN/want.$1" out
}

@test "a disk of 64 KiB that fills up: status 5, nothing half-written, and the rest when there is room again" {
    mkdir disk
    for t in $TOOLS; do
        # The more is free, the later it fails.
        for free in 0 1 2 3 5 8 11 15; do
            [ -n "${CART_FAULTS-}" ] || [ $((free % 3)) = 2 ] || continue
            run_on_disk=$(declare -f run_tool nothing_but whole_or_absent resumable)
            IN=$IN run_on_disk=$run_on_disk in_namespace '
                set -e
                eval "$run_on_disk"
                mount -t tmpfs -o size=64k none disk
                cd disk
                head -c $(($2 * 4096)) /dev/zero > filler
                status=0
                run_tool "$1" out 2> ../err || status=$?
                [ $status = 0 ] || [ $status = 5 ]
                [ $status = 0 ] || [ "$(wc -l < ../err)" = 1 ]
                grep -q "^$1: " ../err || [ $status = 0 ]
                whole_or_absent "$1"
                [ $status != 0 ] || [ -e out ]
                nothing_but filler out out.part out.optimizer.safetensors
                echo $status >> ../statuses
                rm filler
                mount -o remount,size=8m none .
                run_tool "$1" out $(resumable "$1")
                cmp "$IN/want.$1" out
                [ "$(ls -A)" = out ]
            ' "$t" $((16 - free)) || { echo "$t with $free pages free" >&2; cat err >&2; return 1; }
        done
        grep -q 5 statuses
        rm statuses
    done
}

@test "a folder that may only be read: status 5 before any work" {
    mkdir disk
    for t in $TOOLS; do
        run_on_disk=$(declare -f run_tool) IN=$IN in_namespace '
            eval "$run_on_disk"
            mount -t tmpfs -o ro none disk
            run_tool "$1" disk/out 2> err
            [ $? = 5 ]
        ' "$t"
        grep -q "^$t: .*disk/out.*: Read-only file system" err
        [ "$(wc -l < err)" -eq 1 ]
    done
}

@test "a directory in place of the output, or of what lies beside it: status 2, and it stays" {
    for t in $TOOLS; do
        mkdir out
        touch out/mine
        cart_must_fail 2 run_tool "$t" out 2> err
        cart_has err "$t: out: expected "
        [ "$(ls -A . out)" = "$(printf '.:\nerr\nout\n\nout:\nmine')" ]
        rm -r out
    done
    for t in cart-selfstudy cart-teacher cart-train; do
        for beside in out.part out.optimizer.safetensors; do
            [ "$t $beside" != 'cart-selfstudy out.optimizer.safetensors' ] || continue
            [ "$t $beside" != 'cart-teacher out.optimizer.safetensors' ] || continue
            mkdir $beside
            cart_must_fail 2 run_tool "$t" out 2> err
            [ -d $beside ]
            [ ! -e out ]
            rmdir $beside
            nothing_but err
        done
    done
    mkdir m
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics m -o out "$IN/c.targets"
    mkdir n.part
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics n -o out "$IN/c.targets"
    nothing_but err m n.part
}

@test "a reader that leaves: dies by SIGPIPE, silently" {
    for t in $TOOLS; do
        run cart_unread run_tool "$t" -
        cart_equal 141 "$status" "$t"
        cart_equal '' "$output" "$t: standard error"
    done
}

@test "TERM at any time: dies by it, nothing half-written, and goes on to the same bytes" {
    times=${CART_FAULTS:+40}
    for t in $TOOLS; do
        for i in $(seq "${times:-6}"); do
            run_tool "$t" out 2> err &
            # The tool is a child of the function's shell.
            sleep "0.0$(((i * 37 + ${#t} * 11) % 90 + 10))"
            pkill -TERM -P $! || true
            wait $! || true
            whole_or_absent "$t"
            nothing_but err out out.part out.optimizer.safetensors '.out*.tmp'
            run_tool "$t" out $(resumable "$t")
            cmp "$IN/want.$t" out
            rm -f out
            nothing_but err '.out*.tmp'
            rm -f .out*.tmp
        done
    done
}

@test "two runs with one output: it is whole, and the second waits its turn or is as good" {
    for t in $TOOLS; do
        for _ in 1 2 3; do
            run_tool "$t" out 2> err.1 &
            one=$!
            status=0
            run_tool "$t" out 2> err.2 || status=$?
            first=0
            wait $one || first=$?
            case $t in
                cart-tokenize | cart-view) cart_equal '0 0' "$first $status" "$t" ;;
                *)
                    # One may be done before the other begins.
                    case "$first $status" in '0 0' | '0 6' | '6 0') ;; *) cat err.*; false ;; esac ;;
            esac
            cmp "$IN/want.$t" out
            nothing_but out 'err.?'
            rm out
        done
    done
}

@test "a slow disk lets no second run in while a state is saved" {
    shim=${CART_BIN%/bin}/inject/shim.so
    [ -x "$shim" ] || skip "machine: the library that injects faults is not built (sanitized builds have none)"
    LD_PRELOAD=$shim CART_INJECT=io-fail:0 CART_INJECT_SLOW=400 \
        cart-train -q -j 1 -p 48 --steps 2 --save-every 1 -o out "$IN/c.targets" &
    pid=$!
    until [ -e out.part ] || ! kill -0 $pid 2> /dev/null; do sleep 0.02; done
    # FILE.part is empty until the first state has been saved, which takes several syncs; a second state follows.
    tries=0
    until [ -s out.part ]; do
        cart_must_fail 6 cart-train -q -j 1 -p 48 --steps 1 -o out "$IN/c.targets"
        tries=$((tries + 1))
    done
    cart_must_fail 6 cart-train -q -j 1 -p 48 --steps 1 -o out "$IN/c.targets"
    [ $tries -gt 1 ]
    wait $pid
    nothing_but out
}
