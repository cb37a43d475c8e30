#!/usr/bin/env bats
# The tools, at length: what one run writes, any other way to it writes too. Tiny models of each family, and the demo
# model where it is at hand. make check-exact runs this; the e2e tests have a sample of each.
# bats file_tags=slow
load ../helper/common

SHIM=${CART_BIN%/bin}/inject/shim.so

MODELS='llama_tied llama_tied.q8_0 llama_tied.mix llama3_untied llama_d256.kmix llama_d256.q4_k_m llama_d256.mxfp4 qwen2
    qwen2.mix qwen3 qwen3_d256.kmix'
FAMILIES='llama_tied qwen2 qwen3'
STUDY='-n 10 --held-out 3 --chunk 16:48 --context chunk --max-q 10 --max-a 40 --seed 5'

# use MODEL: a copy of a tiny model whose context is 4096 tokens instead of 512, so that 1024 rows and what follows them
# fit; x.tokens is a corpus for it.
use() {
    cart_tiny "$1"
    LC_ALL=C sed 's/\(context_length\x04\x00\x00\x00\)\x00\x02\x00\x00/\1\x00\x10\x00\x00/' "$CART_MODEL" > "$1.gguf"
    export CART_MODEL=$PWD/$1.gguf
    cart_equal 4096 "$(cart-view "$CART_MODEL" | jq -r 'select(.key? // "" | endswith(".context_length")).value')"
    cart-tokenize -q -o x.tokens "$CART_ROOT/examples/manual/1-overview.md" "$CART_ROOT/examples/manual/2-setting-up.md"
}

# The demo model, on its manual.
use_demo() {
    CART_MODEL=${XDG_CACHE_HOME:-$HOME/.cache}/cart/SmolLM2-135M-Instruct.Q4_1.gguf
    cart_need "$CART_MODEL"
    export CART_MODEL
    cart-tokenize -q -o x.tokens "$CART_ROOT/examples/manual"
}

# equal_at P...: the acceptance gate.
equal_at() {
    for p; do
        cart-equiv -p "$p" --suffix-max 96 --steps 32 x.tokens | tee out
        cart_has out "p $p, suffix 96: max |delta logit| = 0, greedy agreement 32/32: equal"
    done
}

study() {
    # shellcheck disable=SC2086
    cart-selfstudy -q $STUDY "$@"
}

records() {
    cart-view "$1" | jq -c 'select(.record == "conv" or .record == "targ")'
}

@test "an untrained cartridge is the real prefill: tiny models, 1 to 1024 rows" {
    for name in $MODELS; do
        use "$name"
        equal_at 1 2 64 256 1024
    done
}

@test "an untrained cartridge is the real prefill: the demo model, 1 to 1024 rows" {
    use_demo
    equal_at 1 2 64 256 1024
}

@test "answers guessed from the corpus: the same bytes" {
    for name in $FAMILIES; do
        use "$name"
        # A random model says nothing of the corpus; runs of every token make it hear three of a kind somewhere.
        cart-view x.tokens | jq -c 'if .record == "doc" and .doc == 1 then .tokens += [range(300) as $i | range(6) | $i]
            else . end' > more.jsonl
        cart-view --pack -q -o x.tokens more.jsonl
        study -o want.conv x.tokens
        for k in 1 2 7 32; do
            for width in 1 5 16; do
                study --spec-b $k --gen-batch $width -o got.conv x.tokens
                cmp want.conv got.conv
            done
        done
    done
}

@test "answers guessed from the corpus: the same bytes of the demo model, some guesses right" {
    use_demo
    STUDY='-n 6 --held-out 2 --max-a 64 --seed 5 --seed-types question,verbatim'
    study -o want.conv x.tokens
    for k in 2 8; do
        # shellcheck disable=SC2086
        cart-selfstudy $STUDY --spec-b $k -o got.conv x.tokens 2> log
        cmp want.conv got.conv
        grep -Eq '[1-9][0-9]* tokens guessed from the corpus, [1-9][0-9]* of them right' log
    done
    cart-teacher -q -o want.targets want.conv
    study --targets --spec-b 4 -o got.targets x.tokens
    cmp want.targets got.targets
}

@test "targets written with the conversations are the teacher's; shards joined are the whole" {
    for name in $FAMILIES; do
        use "$name"
        study -o want.conv x.tokens
        cart-teacher -q -o want.targets want.conv
        study --targets -o got.targets x.tokens
        cmp want.targets got.targets
        for n in 2 3 5 13; do
            rm -f part.*
            for i in $(seq $n); do
                study --shard $i/$n -o part.conv.$(printf %02d $i) x.tokens
                study --targets --shard $i/$n -o part.targets.$(printf %02d $i) x.tokens
            done
            cart-view --cat -o got.conv part.conv.*
            cmp want.conv got.conv
            cart-view --cat -o got.targets part.targets.*
            cmp want.targets got.targets
        done
    done
}

@test "threads, processor and width change no byte of a conversation or target" {
    for name in $FAMILIES; do
        use "$name"
        study --targets -o want.targets x.tokens
        for cpu in generic avx2 avx512; do
            CART_CPU=$cpu cart-selfstudy -V > /dev/null 2>&1 || continue # this processor lacks it
            for run in '1 1' '2 2' '3 5' '2 16'; do
                set -- $run
                CART_CPU=$cpu study --targets -j "$1" --gen-batch "$2" -o got.targets x.tokens
                cmp want.targets got.targets
            done
        done
    done
}

@test "the same conversation has the same targets in any company" {
    for name in $FAMILIES; do
        use "$name"
        study -o whole.conv x.tokens
        cart-view whole.conv > whole.jsonl
        cart-teacher -q -o whole.targets whole.conv
        records whole.targets > want
        # Alone, in pairs, and in every third place.
        for step in 13 7 3; do
            : > got
            for first in $(seq 0 $((step - 1))); do
                jq -c --argjson s $step --argjson f $first 'select(.record != "conv" or .n % $s == $f)' whole.jsonl \
                    > some.jsonl
                cart-view --pack -q -o some.conv some.jsonl
                cart-teacher -q -o some.targets some.conv
                records some.targets >> got
            done
            sort -o got got
            sort want | cmp - got
        done
    done
}

@test "self-study and teacher gone on from any beginning: the same bytes" {
    use llama_tied
    study -o want.conv x.tokens
    cart-teacher -q -o want.targets want.conv
    for of in conv targets; do
        size=$(stat -c %s want.$of)
        before=0
        for i in $(seq 1 40); do
            head -c $((size * i / 41)) want.$of > got.$of.part
            if [ $of = conv ]; then
                # shellcheck disable=SC2086
                cart-selfstudy $STUDY --resume -o got.conv x.tokens 2> words
            else
                cart-teacher --resume -o got.targets want.conv 2> words
            fi
            cmp want.$of got.$of
            rm got.$of
            # What was there is not made again: the more of it, the more is kept, in the end all but the last.
            kept=$(sed -n 's/.*going on after \([0-9]*\) conversations\{0,1\}$/\1/p' words)
            [ "${kept:-0}" -ge $before ]
            before=${kept:-0}
        done
        cart_equal 12 $before
    done
}

@test "training killed after any step and gone on: the same bytes; packed or not, recomputed or not" {
    [ -x "$SHIM" ] || skip 'machine: the library that injects faults is not built (sanitized builds have none)'
    for name in $FAMILIES; do
        use "$name"
        study --targets -o x.targets x.tokens
        train() { cart-train -q -p 70 --steps 8 --accum 3 "$@" x.targets; }
        killed() { LD_PRELOAD=$SHIM CART_INJECT=$1 CART_INJECT_COUNT=count train --save-every 1 --metrics got.jsonl -o got; }
        train -o want
        for options in '--no-pack -j 1' '--recompute -j 2' '--no-pack --recompute -j 3' '--max-tokens 60'; do
            # shellcheck disable=SC2086
            train $options -o got
            cmp want got
        done
        rm -f got*
        killed kill-before:0
        points=$(cat count)
        : > starts
        for i in $(seq 1 10); do
            rm -f got*
            cart_must_fail 137 killed kill-before:$((points * i / 11))
            cart-train -v -v -p 70 --steps 8 --accum 3 --resume --metrics got.jsonl -o got x.targets 2> words
            cmp want got
            sed -n 's/^cart-train: .*step \([0-9]*\): loss.*/\1/p' words | head -n 1 >> starts
        done
        # It went on where it had been killed, later and later.
        sort -c -n starts
        [ "$(sort -u starts | wc -l)" -ge 5 ]
    done
}
