#!/usr/bin/env bats
# cart-equiv: the acceptance gate on every tiny model, and how it fails.
load ../helper/common
load ../helper/study

setup() {
    cart_setup
    cart_tiny llama_tied
    cart_study_text > corpus.txt
    cart-tokenize -q -o c.tokens corpus.txt
}

@test "help, version and the manual agree" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-equiv.1")" "$(cart_help_usage cart-equiv)" synopsis
    cart-equiv --version | grep -q '^cart-equiv '
    cart_must_fail 2 cart-equiv --no-such-option
    cart_must_fail 2 cart-equiv c.tokens c.tokens
    cart_must_fail 2 cart-equiv -p 0 c.tokens
}

@test "an untrained cartridge is the real prefill, on every tiny model" {
    for name in llama_tied llama_tied.q8_0 llama_tied.mix llama3_untied llama_d256.kmix llama_d256.q4_k_m qwen2 qwen2.mix \
        qwen3 qwen3_d256.kmix; do
        cart_tiny $name
        cart-tokenize -q -o t.tokens corpus.txt
        for p in 1 2 31 32 65; do
            cart-equiv -p $p --suffix-max 60 --steps 40 t.tokens > out
            cart_has out 'max |delta logit| = 0, greedy agreement 40/40: equal'
        done
    done
}

@test "rows that have no room for a system turn are the corpus as it is" {
    for p in 1 2 10; do
        cart-equiv -p $p --suffix-max 60 --steps 20 c.tokens > out
        cart_has out "p $p, suffix 60: max |delta logit| = 0, greedy agreement 20/20: equal"
    done
    printf 'ab c' > short.txt
    cart-tokenize -q -o s.tokens short.txt
    n=$(cart-view s.tokens | jq 'select(.record == "doc").tokens | length')
    cart-equiv -p $((n - 1)) --steps 5 s.tokens > out
    cart_has out ', suffix 1:'
    cart_must_fail 2 cart-equiv -p "$n" --steps 5 s.tokens 2> err
    cart_has err "takes all $n tokens"
}

@test "whatever the threads and the processor" {
    for run in '1 generic' '2 generic' '3 generic'; do
        set -- $run
        CART_CPU=$2 cart-equiv -p 48 -j $1 --suffix-max 40 --steps 20 c.tokens > out
        cart_has out 'max |delta logit| = 0, greedy agreement 20/20: equal'
    done
}

@test "cut and mismatched input, a full device" {
    size=$(wc -c < c.tokens)
    for n in 0 1 9 40 200 $((size / 2)) $((size - 1)); do
        head -c $n c.tokens > cut
        cart_must_fail 3 cart-equiv -p 48 cut
    done
    cart_must_fail 5 sh -c 'cart-equiv -p 48 --steps 2 c.tokens > /dev/full'
    cart_tiny qwen2
    cart_must_fail 4 cart-equiv -p 48 c.tokens
}

@test "a dry run says what it takes and compares nothing" {
    cart-equiv --dry-run -p 48 --suffix-max 40 --steps 20 c.tokens > out 2> err
    [ ! -s out ]
    grep -qE '^cart-equiv: p 48, suffix 40, 20 steps; memory beside the model: [0-9.]+ MiB; disk: [0-9.]+ MiB in [^;]+; time: about [0-9.]+ s$' err
    cart_must_fail 2 cart-equiv --dry-run -p 500 c.tokens
}

@test "nothing stays in TMPDIR, not even when it is killed" {
    mkdir t
    TMPDIR=t cart-equiv -p 48 --suffix-max 40 --steps 400 c.tokens > out &
    pid=$!
    until grep -q '/t/.*(deleted)' /proc/$pid/maps 2> /dev/null || ! kill -0 $pid 2> /dev/null; do :; done
    cart_equal '' "$(ls -A t)" 'while it runs'
    kill -9 $pid 2> /dev/null || true
    wait $pid || true
    cart_equal '' "$(ls -A t)" 'when it was killed'
    TMPDIR=no cart_must_fail 5 cart-equiv -p 48 --suffix-max 40 --steps 4 c.tokens 2> err
    cart_has err 'no: a scratch file in this folder: No such file or directory'
}
