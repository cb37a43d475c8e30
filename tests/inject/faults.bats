#!/usr/bin/env bats
# Each tool with each of its calls failing once (sweep.c says what is wrong then). CART_FAULTS=all tries every point;
# else a few of each kind, evenly spaced, and the last ones, where files are published.

load ../helper/common
load ../helper/study

IN=$BATS_FILE_TMPDIR
SWEEP=${CART_BIN%/bin}/inject/sweep

setup_file() {
    [ -x "$SWEEP" ] || return 0
    cd "$IN" || return 1
    cart_tiny llama_tied
    mkdir docs state
    cart_study_text > docs/a.txt
    printf '{"id": "one", "text": "The lid is copper."}\n{"text": "The kettle boils."}\n' > docs/b.jsonl
    printf '{"messages": [{"role": "user", "content": "How long?"}, {"role": "assistant", "content": "Long."}]}\n' > chat.jsonl
    tar -czf docs/c.tar.gz docs/a.txt docs/b.jsonl
    tar -cjf docs/d.tar.bz2 docs/a.txt
    ! command -v python3 > /dev/null || python3 -c 'import zipfile; zipfile.ZipFile("docs/e.zip", "w").write("docs/b.jsonl")'
    cart-tokenize -q -o c.tokens docs/a.txt
    cart-selfstudy -q -n 4 --held-out 2 --max-a 8 --max-q 6 --chunk 32:64 --context chunk -o c.conv c.tokens
    cart-teacher -q -o c.targets c.conv
    cart-init -q -p 24 -o c.cart c.tokens
    cart-view c.targets > c.lines
    cart-view --data c.cart > c.cart.lines
    for i in 1 2; do
        cart-selfstudy -q -n 4 --held-out 2 --max-a 8 --max-q 6 --chunk 32:64 --context chunk --shard $i/2 \
            -o shard.$i c.tokens
    done
    # What a killed run leaves behind.
    cut_short conv 9 x cart-selfstudy -q -j 1 -n 4 --held-out 2 --max-a 8 --max-q 6 --chunk 32:64 --context chunk \
        -o x "$IN/c.tokens"
    cut_short targets 9 x cart-teacher -q -j 1 -o x "$IN/c.conv"
    cut_short train 90 r cart-train -q -j 1 -p 32 --steps 3 --accum 2 --save-every 1 -o r "$IN/c.targets"
}

# cut_short NAME N OUTPUT COMMAND...: IN/state/NAME holds what the command leaves when it is killed at its n-th write.
cut_short() {
    mkdir "$IN/state/$1"
    (cd "$IN/state/$1" && LD_PRELOAD=${SWEEP%sweep}shim.so CART_INJECT=kill-before:$2 "${@:4}") || true
    [ -e "$IN/state/$1/$3.part" ] && [ ! -e "$IN/state/$1/$3" ]
    rm -f "$IN/state/$1"/.*.tmp
}

setup() {
    cart_setup
    [ -x "$SWEEP" ] || skip 'machine: the library that injects faults is not built (sanitized builds have none)'
    cart_tiny llama_tied
}

# What concerns a run that maps its inputs and changes no file, one that reads them, and one that writes.
MAPPING='alloc-once alloc-rest io-fail'
READING="$MAPPING io-short io-eintr"
ALL="$READING disk-full kill-before kill-after"

# faults MODES ARGUMENTS...: a sweep of the command in each of the modes.
faults() {
    local mode wrong=0 some
    # OpenBLAS would start threads before main, in every one of thousands of runs.
    export OPENBLAS_NUM_THREADS=1
    case ${CART_FAULTS-} in all) some=0 ;; *) some=3 ;; esac
    for mode in $1; do
        # Files in memory where that is possible: a sweep syncs thousands of times.
        TMPDIR=$([ -w /dev/shm ] && echo /dev/shm || echo "$BATS_TEST_TMPDIR") \
            "$SWEEP" -k "$some" -m "$mode" "${@:2}" > report || wrong=1
        sed '$d' report
        echo "# $(tail -n 1 report) $mode $BATS_TEST_DESCRIPTION" >&3
    done
    return "$wrong"
}

# blamed FAULT WORDS: sweep says so of a program with that fault alone, and only so.
blamed() {
    cart_must_fail 1 "$SWEEP" -m io-fail -o out -- "${SWEEP%sweep}careless" "$1" > said
    cart_has said "$2"
    sed '$d' said | grep -vF "$2" && return 1
    return 0
}

@test "a file that a crash would lose is seen" {
    "$SWEEP" -m io-fail -o out -- "${SWEEP%sweep}careless" none
    blamed no-sync 'rename of a file that is not synced'
    blamed late-write 'rename of a file that is not synced'
    blamed no-folder-sync 'rename without a sync of the folder'
    blamed sync-unheard 'fsync failed, and the status is 0'
    blamed folder-unheard 'fsync failed, and the status is 0'
    blamed close-unheard 'close failed, and the status is 0'
    blamed cut-unheard 'ftruncate failed, and the status is 0'
}

@test "cart-tokenize: a text" {
    faults "$ALL" -o t -- cart-tokenize -q -o t "$IN/docs/a.txt"
}

@test "cart-tokenize: a folder with an archive and lines, compressed, over an older file" {
    mkdir start
    echo old > start/t
    # libarchive ends the process itself where it has no memory for a name.
    faults "$ALL" -x 'Fatal Internal Error in libarchive' -d start -o t -- cart-tokenize -q -z 3 -o t "$IN/docs"
}

@test "cart-tokenize: a text to standard output" {
    faults "$ALL" -i "$IN/docs/a.txt" -- cart-tokenize -q -
}

@test "cart-tokenize: chat" {
    faults "$ALL" -o t -- cart-tokenize -q --chat "$IN/chat.jsonl" -o t
}

@test "cart-selfstudy: conversations" {
    faults "$ALL" -o x -s x.part -r --resume -- cart-selfstudy -q -j 1 -n 4 --held-out 2 --max-a 8 --max-q 6 \
        --chunk 32:64 --context chunk -o x "$IN/c.tokens"
}

@test "cart-selfstudy: targets, compressed, the document in context" {
    faults "$ALL" -o x -s x.part -r --resume -- cart-selfstudy -q -j 1 -n 2 --held-out 1 --max-a 6 --max-q 6 \
        --chunk 32:64 --context document --targets -z 3 -o x "$IN/c.tokens"
}

@test "cart-selfstudy: gone on with" {
    faults "$ALL" -d "$IN/state/conv" -o x -s x.part -- cart-selfstudy -q -j 1 -n 4 --held-out 2 --max-a 8 --max-q 6 \
        --chunk 32:64 --context chunk --resume -o x "$IN/c.tokens"
}

@test "cart-selfstudy: to standard output" {
    faults "$ALL" -i "$IN/c.tokens" -- cart-selfstudy -q -j 1 -n 2 --held-out 1 --max-a 6 --max-q 6 --chunk 32:64 \
        --context chunk
}

@test "cart-teacher: targets" {
    faults "$ALL" -o x -s x.part -r --resume -- cart-teacher -q -j 1 -o x "$IN/c.conv"
}

@test "cart-teacher: gone on with" {
    faults "$ALL" -d "$IN/state/targets" -o x -s x.part -- cart-teacher -q -j 1 --resume -o x "$IN/c.conv"
}

@test "cart-teacher: to standard output" {
    faults "$ALL" -i "$IN/c.conv" -- cart-teacher -q -j 1
}

TRAIN='cart-train -q -j 1 -p 32 --accum 2'

@test "cart-train: states, metrics" {
    faults "$ALL" -o r -s r.part -s r.optimizer.safetensors -o m -s m.part -r --resume -- \
        $TRAIN --steps 3 --save-every 1 --metrics m -o r "$IN/c.targets"
}

@test "cart-train: no cartridge stands without its metrics" {
    local seen=
    (LD_PRELOAD=${SWEEP%sweep}shim.so CART_INJECT=kill-before:0 CART_INJECT_COUNT=$PWD/count \
        $TRAIN --steps 2 --metrics m -o r "$IN/c.targets")
    for n in $(seq $(($(cat count) - 8)) "$(cat count)"); do
        rm -f r* m*
        (LD_PRELOAD=${SWEEP%sweep}shim.so CART_INJECT=kill-before:$n $TRAIN --steps 2 --metrics m -o r "$IN/c.targets") || true
        [ ! -e r ] || [ -e m ]
        [ -e r ] || [ ! -e m ] || seen=1
    done
    [ -n "$seen" ]
}

@test "cart-train: from a pipe, two passes, an older cartridge" {
    mkdir start
    echo old > start/r
    echo old > start/m.jsonl
    faults "$ALL" -d start -i "$IN/c.targets" -o r -s r.part -s r.optimizer.safetensors -o m.jsonl -s m.jsonl.part \
        -r --resume -- $TRAIN --epochs 2 --eval-every 1 --draft-ref --recompute --metrics m.jsonl -o r
}

@test "cart-train: gone on with" {
    faults "$ALL" -d "$IN/state/train" -o r -s r.part -s r.optimizer.safetensors -- \
        $TRAIN --steps 3 --save-every 1 --resume -o r "$IN/c.targets"
}

@test "cart-train: to standard output" {
    faults "$ALL" -i "$IN/c.targets" -- $TRAIN --steps 2
}

@test "files without a name cannot be had: cart-tokenize, cart-train, cart-view" {
    faults 'alloc-once disk-full kill-before kill-after' -n -o t -- cart-tokenize -q -o t "$IN/docs/a.txt"
    faults 'alloc-once disk-full kill-before kill-after' -n -o r -s r.part -s r.optimizer.safetensors -r --resume -- \
        $TRAIN --steps 2 --save-every 1 -o r "$IN/c.targets"
    faults 'alloc-once disk-full kill-before kill-after' -n -o v -- cart-view -q --dtype f16 -o v "$IN/c.cart"
}

@test "cart-view: listings" {
    faults "$ALL" -o v -- cart-view -q -o v "$IN/c.targets"
    faults "$ALL" -o v -- cart-view -q --data -o v "$IN/c.cart"
    faults "$ALL" -- cart-view -q "$CART_MODEL"
}

@test "cart-view: --pack" {
    faults "$ALL" -o v -- cart-view -q --pack -z 3 -o v "$IN/c.lines"
    faults "$ALL" -o v -- cart-view -q --pack -o v "$IN/c.cart.lines"
}

@test "cart-view: --cat, --dtype" {
    faults "$ALL" -o v -- cart-view -q --cat -o v "$IN/shard.1" "$IN/shard.2"
    faults "$ALL" -o v -- cart-view -q --dtype bf16 -o v "$IN/c.cart"
}

@test "cart-view: --check" {
    for f in "$IN/c.targets" "$IN/c.cart" "$CART_MODEL"; do
        faults "$MAPPING" -- cart-view -q --check "$f"
    done
    faults "$READING" -i "$IN/c.targets" -- cart-view -q --check -
}

@test "cart-init" {
    faults "$ALL" -o c -- cart-init -q -j 1 -p 24 --draft-ref -o c "$IN/c.tokens"
    for f in "$IN/c.cart" "$IN/c.tokens"; do
        faults "$MAPPING" -o c -- cart-init -q -j 1 -p 24 --init "$f" -o c "$IN/c.tokens"
    done
}

@test "cart-eval, cart-equiv, cart-ask" {
    faults "$ALL" -o e -- cart-eval -q -j 1 --json -c "$IN/c.cart" -o e "$IN/c.targets"
    faults "$READING" -- cart-equiv -q -j 1 -p 16 --steps 4 "$IN/c.tokens"
    faults "$MAPPING" -- cart-ask -q -j 1 -c "$IN/c.cart" --max-tokens 8 'How long?'
}
