load ../helper/common

setup() {
    cart_setup
    cart_tiny llama_tied
    for i in 1 2 3 4 5 6 7 8; do echo "Rule $i of the mill: the wheel turns $((i * 7)) times."; done >a.txt
    cart-tokenize -q -o corpus.tokens a.txt
    cart-init -q -p 24 -o c.safetensors corpus.tokens
}

@test "the manual says what -h says" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-ask.1")" "$(cart_help_usage cart-ask)"
}

@test "greedy answers are the same on every path and thread count" {
    cart-ask --max-tokens 24 'How often?' >a
    [ -s a ]
    cart-ask -j 1 --max-tokens 24 'How often?' >b
    cmp a b
    CART_CPU=generic cart-ask --max-tokens 24 'How often?' >b
    cmp a b
}

@test "--kv: half the memory, and a class of its own that no thread or path changes" {
    cart-ask -v --text a.txt --max-tokens 24 'How often?' 2>log >f32
    cart-ask -v --kv f32 --text a.txt --max-tokens 24 'How often?' 2>log >same
    cmp f32 same
    whole=$(grep -oE '[0-9]+ rows, [0-9.]+ MiB' log)
    for kv in f16 bf16; do
        cart-ask -v --kv $kv --text a.txt --max-tokens 24 'How often?' 2>log >one
        CART_CPU=generic cart-ask -j 1 --kv $kv --text a.txt --max-tokens 24 'How often?' >two
        cmp one two
        half=$(grep -oE '[0-9]+ rows, [0-9.]+ MiB' log)
        awk -v a="$whole" -v b="$half" 'BEGIN {
            split(a, x, " "); split(b, y, " "); want = x[3] / x[1] / 2; got = y[3] / y[1]
            exit !(got > 0.8 * want && got < 1.25 * want)
        }'
    done
    cart_must_fail 2 cart-ask --kv f8 'How often?'
}

@test "CART_TRACE says when everything is mapped and the first token begins" {
    CART_TRACE=$PWD/trace cart-ask --max-tokens 2 'How often?' >/dev/null
    cart_equal 'start ready exit' "$(jq -r .event trace | paste -sd ' ')"
}

@test "sampling follows the seed alone" {
    cart-ask --temperature 1 --seed 1 --max-tokens 24 'How often?' >a
    cart-ask --temperature 1 --seed 1 -j 1 --max-tokens 24 'How often?' >b
    cart-ask --temperature 1 --seed 2 --max-tokens 24 'How often?' >c
    cmp a b
    cart_must_fail 1 cmp -s a c
    cart-ask --temperature 1 --top-k 1 --max-tokens 24 'How often?' >d
    cart-ask --max-tokens 24 'How often?' >e
    cmp d e
}

@test "a cartridge changes the answer; several compose in order" {
    cart-ask --max-tokens 24 'How often?' >bare
    cart-ask -c c.safetensors --max-tokens 24 'How often?' >one
    cart-ask -c c.safetensors -c c.safetensors --max-tokens 24 'How often?' >two
    cart_must_fail 1 cmp -s bare one
    cart_must_fail 1 cmp -s one two
}

@test "a chat keeps what was said: line by line, until /quit" {
    cart_tiny qwen3
    printf 'One\n\nTwo\n/quit\nThree\n' | cart-ask --max-tokens 24 >chat
    printf 'One\n' | cart-ask --max-tokens 24 >first
    cart-ask --max-tokens 24 One >single
    cmp first single
    [ "$(head -c "$(stat -c %s first)" chat)" = "$(cat first)" ]
    printf 'Two\n' | cart-ask --max-tokens 24 >alone
    tail -c +"$(($(stat -c %s first) + 1))" chat >rest
    cart_must_fail 1 cmp -s rest alone
}

@test "--compare shows three answers with their figures" {
    cart-ask --compare -c c.safetensors --text a.txt --max-tokens 8 'How often?' >out
    cart_has out '[bare: '
    cart_has out '[text in context: '
    cart_has out '[cartridge: '
    cart_has out ' rows, '
    cart_equal 3 "$(grep -c '^\[.* MiB of keys and values, cut after 8 tokens\]$' out)" 'answers that say they are cut'
    cart_equal "$(cart-ask -c c.safetensors --max-tokens 8 'How often?')" \
        "$(awk '/^\[cartridge/ { on = 1; next } on' out)"
}

@test "what does not fit the context is said with numbers" {
    printf 'The wheel turns and turns.\n%.0s' {1..200} >long.txt
    cart_must_fail 2 cart-ask --text long.txt 'How often?' 2>log
    cart_has log "the model's context of 512"
    cart-ask --compare --text long.txt --max-tokens 4 'How often?' >out
    cart_has out '[text in context: no answer]'
    cart_must_fail 2 cart-ask "$(cat long.txt)" 2>log
    cart_has log 'context of 512'
}

@test "usage, foreign files and other models" {
    cart_must_fail 2 cart-ask --compare 2>log
    cart_has log 'expected a question'
    cart_must_fail 2 cart-ask --compare 'How?' 2>log
    cart_has log '--compare: expected -c or --text'
    cart_must_fail 2 cart-ask ''
    cart_must_fail 2 cart-ask one two
    for option in '--seed 1' '--top-k 5' '--top-p 0.5' '--min-p 0.1'; do
        cart_must_fail 2 cart-ask $option One 2>log
        cart_has log '--temperature'
    done
    cart_must_fail 2 cart-ask -c c.safetensors --text a.txt 'How?'
    cart_must_fail 3 cart-ask -c a.txt 'How?'
    cart_must_fail 5 cart-ask -c absent.safetensors 'How?'
    cart_must_fail 2 cart-ask --profile llama3 -c c.safetensors 'How?' 2>log
    cart_equal 'cart-ask: chat profile llama3: the vocabulary has no control token <|start_header_id|>' "$(cat log)"
    cart_must_fail 4 cart-ask --profile smollm2 -c c.safetensors 'How?' 2>log
    cart_equal 'cart-ask: c.safetensors: cartridge: made with another chat profile: expected smollm2, found chatml, which --profile chatml asks for' "$(cat log)"
    cart_tiny qwen3
    cart_must_fail 4 cart-ask -c c.safetensors 'How?' 2>log
    cart_has log 'made for another model: expected 4 layers of 2 KV heads of width 32, found 4 layers of 2 KV heads of width 16'
}

@test "every page with --profile names the profiles that there are" {
    local page name
    cart_must_fail 2 cart-ask --profile nope 'How?' 2>log
    sed -n "s/.*expected \(.*\), found 'nope'$/\1/p" log | sed 's/, / /g; s/ or / /' > names
    [ "$(wc -w < names)" -ge 5 ]
    for page in "$CART_ROOT/man/cart.7" $(grep -lE '^\.It .*(-|Fl )profile Ar' "$CART_ROOT"/man/*.1); do
        for name in $(cat names); do grep -qE "^\.Cm (.* )?${name//./\\.}( |\$)" "$page" || { echo "$page: no $name" >&2; return 1; }; done
    done
}

@test "documents passed over are counted, and named where more is asked for, as cart-tokenize names them" {
    mkdir docs
    cp a.txt docs/
    printf 'bad \377 byte' > docs/latin
    printf '%%PDF-1.4' > docs/paper.pdf
    cart-ask --text docs --max-tokens 8 'How often?' > with 2> log
    cart_has log '(-v names them all)'
    cart_must_fail 1 grep -q 'docs/latin' log
    cart-ask -v --text docs --max-tokens 8 'How often?' > with 2> log
    cart_has log 'docs/latin: passed over: byte 4 is no UTF-8'
    cart_has log 'docs/paper.pdf: passed over: PDF'
    cart_has log 'passed over 2: '
    cart-tokenize --count docs 2> words > /dev/null
    cart_equal "$(sed 's/^cart-tokenize: //' words)" "$(sed 's/^cart-ask: //; /was cut after/d; /first token/d' log)"
    # More tokens help an answer that goes on, and not one that goes round.
    cart_has log 'the answer was cut after 8 tokens: it repeats itself'
    cart-ask --text docs --max-tokens 8 --temperature 9 'How often?' > on 2> log
    cart_has log 'the answer was cut after 8 tokens: --max-tokens allows more'
    cart-ask --text a.txt --max-tokens 8 'How often?' > without
    cmp with without
    cart_must_fail 3 cart-ask --text docs/latin 'How often?' 2> log
    cart_has log 'expected a document, found none: docs/latin: byte 4 is no UTF-8'
}

@test "a question that is no UTF-8 is refused" {
    cart_must_fail 3 cart-ask $'caf\xe9?' 2> log
    cart_has log 'question: expected UTF-8, found byte 0xe9 at offset 3'
    printf 'One\ncaf\351?\nTwo\n' | cart_must_fail 3 cart-ask --max-tokens 4 > out 2> log
    cart_has log 'line 2: expected UTF-8, found byte 0xe9 at offset 3'
    cart_equal "$(cart-ask --max-tokens 4 One)" "$(cat out)"
}

@test "a chat on a terminal says what it cannot answer and goes on" {
    cart_need_tool script
    printf 'caf\351\nOne\n/quit\n' > keys
    timeout 60 script -qec 'cart-ask --max-tokens 4' /dev/null < keys > out
    cart_has out 'line 1: expected UTF-8'
    cart-ask --max-tokens 4 One > want
    tr -d '\r' < out > plain
    cart_has plain "$(cat want)"
}

@test "a full disk is reported, a closed pipe is silent" {
    cart_must_fail 5 bash -c 'cart-ask --max-tokens 8 One >/dev/full'
    run bash -c 'cart-ask --max-tokens 200 --temperature 2 One 2>log | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}'
    [ ! -s log ]
}
