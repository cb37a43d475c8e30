#!/usr/bin/env bats
# cart-init: rows of every origin, and how it fails.
load ../helper/common
load ../helper/study

setup() {
    cart_setup
    cart_tiny llama_tied
    cart_study_text > corpus.txt
    cart-tokenize -q -o c.tokens corpus.txt
}

recipe() {
    cart-view "$1" | jq -r 'select(.metadata) | .metadata["cart.recipe"]' | sed -n 1p
}

@test "help, version and the manual agree" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-init.1")" "$(cart_help_usage cart-init)" synopsis
    cart-init --version | grep -q '^cart-init '
    cart_must_fail 2 cart-init --no-such-option
    cart_must_fail 2 cart-init c.tokens c.tokens
    cart_must_fail 2 cart-init -p 0 c.tokens
}

@test "rows of every origin" {
    cart_need_tool jq
    for init in spread corpus random; do
        seed=
        [ $init != random ] || seed='--seed 5'
        # shellcheck disable=SC2086
        cart-init -p 48 --init $init $seed -o $init.safetensors c.tokens
        cart-view --check $init.safetensors
    done
    cart-init -p 48 --init corpus.txt -o text.safetensors c.tokens
    cart-init -p 48 --init c.tokens -o tokens.safetensors c.tokens
    cart-init --init corpus.safetensors -o again.safetensors c.tokens
    # The same rows by three ways; the recipe tells them apart.
    for f in corpus text tokens again; do
        cart-view $f.safetensors | jq -c 'select(.name) | del(.data)' > $f.tensors
        cart-view --data $f.safetensors | jq -c 'select(.name)' | sha256sum > $f.rows
    done
    cmp corpus.rows text.rows
    cmp corpus.rows tokens.rows
    cmp corpus.rows again.rows
    cart-view --data spread.safetensors | jq -c 'select(.name)' | sha256sum > spread.rows
    cart_must_fail 1 cmp -s corpus.rows spread.rows
    cart_must_fail 1 cmp -s corpus.safetensors text.safetensors
}

@test "the recipe knows a corpus by what is in it, the history tells of draft ids" {
    cart_need_tool jq
    cart-tokenize -q -z 3 -o z.tokens corpus.txt
    cart_must_fail 1 cmp -s c.tokens z.tokens
    cart-init -p 48 --init c.tokens -o a c.tokens
    cart-init -p 48 --init z.tokens -o b c.tokens
    cmp a b
    cart-init -p 48 --init c.tokens --draft-ref -o d c.tokens
    cart-view d | jq -r 'select(.metadata) | .metadata["cart.history"]' > history
    cart_equal true "$(jq 'last.options.draft_ref' history)"
}

# edit FROM TO FILTER: FROM with its metadata as the filter of jq makes them, without digests.
edit() {
    cart-view --data "$1" | jq -c "if .metadata then .metadata |= (del(.[\"cart.data\"], .[\"cart.sum\"]) | $3) else . end" |
        cart-view -q --pack -o "$2" -
}

# of FILE KEY: a member of its metadata, or nothing.
of() {
    cart-view "$1" | jq -r --arg k "cart.$2" 'select(.metadata) | .metadata[$k] // "nothing"'
}

@test "what a cartridge says of its rows is said of them further on" {
    cart_need_tool jq
    local key corpus=0123456789abcdef0123456789abcdef
    cart-init -q -p 48 -o a c.tokens
    other=$(of a weights | tr 0-9a-f 1-9a-f0)
    edit a b '.["cart.steps"] = "7" | .["cart.first_position"] = "3" | .["cart.precision"] = "bf16" |
        .["cart.corpus"] = "'"$corpus"'" | .["cart.profile"] = "other" | .["cart.wrapper_open"] = "<" | .["cart.wrapper_close"] = ">" | .["cart.weights"] = "'"$other"'"'
    cart-init -q --allow-other-weights --init b -o c c.tokens 2> err
    for key in steps first_position precision corpus profile wrapper_open wrapper_close weights; do
        cart_equal "$(of b $key)" "$(of c $key)" "$key"
    done
    cart_equal "7 3 bf16 $corpus other < > $other" "$(of c steps) $(of c first_position) $(of c precision) $(of c corpus) $(of c profile
        ) $(of c wrapper_open) $(of c wrapper_close) $(of c weights)"
    # Rows of other weights are not passed off as the model's own.
    cart_must_fail 4 cart-ask -c c hello < /dev/null
    cart-init -q --precision bf16 --init a -o c c.tokens
    cart_equal f32 "$(of c precision)" precision
    # Of a foreign file and of a text little is known; a token stream knows its own corpus.
    edit a b '{}'
    cart-init -q --init b -o c c.tokens
    cart_equal '0 0 f32 nothing nothing' "$(of c steps) $(of c first_position) $(of c precision) $(of c corpus) $(of c profile)"
    cart-init -q -p 48 --init corpus.txt -o c c.tokens
    cart_equal nothing "$(of c corpus)" corpus
    tac corpus.txt > d.txt
    cart-tokenize -q -o d.tokens d.txt
    cart-init -q -p 48 -o b d.tokens
    cart-init -q -p 48 --init d.tokens -o c c.tokens
    cart_equal "$(of b corpus)" "$(of c corpus)" corpus
    cart_must_fail 1 test "$(of a corpus)" = "$(of c corpus)"
}

@test "a file of rows is opened once, so that digest and rows are of one file whatever takes its name" {
    cart_need_tool python3
    cart-init -q -p 48 -o c.cart c.tokens
    cp corpus.txt c.txt
    cp c.tokens other.tokens
    python3 - <<'PY'
import ctypes, os, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
OPEN, CLOSE = 0x20, 0x10
for name in "c.cart", "other.tokens", "c.txt":
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, name.encode(), OPEN | CLOSE) >= 0
    subprocess.run(["cart-init", "-q", "-p", "48", "--init", name, "-o", "out", "c.tokens"], check=True)
    events = [mask for _, mask, _, _ in struct.iter_unpack("=iIII", os.read(watch, 4096))]
    assert events == [OPEN, CLOSE], (name, events)
PY
}

@test "equal input, equal bytes, whatever the threads and the processor" {
    cart-init -p 60 -j 1 -o a c.tokens
    cart-init -p 60 -j 2 c.tokens > b
    CART_CPU=generic cart-init -p 60 -o c - < c.tokens
    cmp a b
    cmp a c
}

@test "p that does not fit is refused with the most there is" {
    cart_must_fail 2 cart-init -p 5000 -o no c.tokens 2> err
    cart_has err 'p 5000: expected'
    cart_must_fail 2 cart-init -p 3 -o no c.tokens 2> err
    [ ! -e no ]
    cart_must_fail 2 cart-init -p 48 --frozen 49 -o no c.tokens
    cart_must_fail 2 cart-init -p 40 --init spread --init corpus.txt -p 5000 -o no c.tokens
    # Without -p a short corpus gives what it has.
    printf 'Ada.' > short.txt
    cart-tokenize -q -o s.tokens short.txt
    cart-init -o s.safetensors s.tokens
    cart-view --check s.safetensors
}

@test "cut, foreign and mismatched input leaves no output" {
    size=$(wc -c < c.tokens)
    for n in 0 1 9 40 200 $((size / 2)) $((size - 1)); do
        head -c $n c.tokens > cut
        cart_must_fail 3 cart-init -p 48 -o no cut
    done
    cart_must_fail 3 cart-init -p 48 -o no corpus.txt
    cart_must_fail 5 cart-init -p 48 -o no no-such-file
    cart_tiny qwen2
    cart_must_fail 4 cart-init -p 48 -o no c.tokens
    [ ! -e no ]
}

@test "a full disk is reported" {
    cart_must_fail 5 cart-init -p 48 -o /dev/full c.tokens
}

@test "a dry run writes nothing" {
    cart-init -p 48 --dry-run -o no c.tokens 2> err
    cart_has err 'p 48; memory beside the model'
    [ ! -e no ]
}

@test "--init takes a word it knows, or a file of text" {
    cart_need_tool jq gzip
    cart_must_fail 2 cart-init -q -p 8 --init spred -o x c.tokens 2> err
    cart_has err '--init spred: expected spread, corpus, random or a file'
    printf 'caf\xe9 au lait, and more words of a text\n' > latin
    cart_must_fail 3 cart-init -q -p 8 --init latin -o x c.tokens 2> err
    cart_has err 'expected UTF-8, found byte 0xe9 at offset 3'
    printf 'a text with a \0 in it, and more words' > nul
    cart_must_fail 3 cart-init -q -p 8 --init nul -o x c.tokens 2> err
    cart_equal 'cart-init: --init nul: text: expected text, found binary: byte 14 is NUL' "$(cat err)"
    gzip -c corpus.txt > packed
    cart_must_fail 3 cart-init -q -p 8 --init packed -o x c.tokens 2> err
    cart_has err '--init packed: text: expected text, found an archive or compressed file: unpack it first'
    : > empty
    cart_must_fail 3 cart-init -q -p 8 --init empty -o x c.tokens 2> err
    cart_has err '--init empty: text: expected text, found none'
    cart-init -q -p 8 --init random c.tokens | head -c -9 > half
    cart_must_fail 3 cart-init -q -p 8 --init half -o x c.tokens 2> err
    cart_has err 'cart-init: --init: half: '
    cart_equal 1 "$(grep -o half err | wc -l)"
    mkdir folder
    cart_must_fail 3 cart-init -q -p 8 --init folder -o x c.tokens 2> err
    cart_equal 'cart-init: --init: folder: expected a file, found a directory' "$(cat err)"
    [ ! -e x ]
    # A pipe is as good, and a byte order mark is no text.
    cart-init -q -p 48 --init corpus.txt -o text c.tokens
    cart-init -q -p 48 --init <(cat corpus.txt) -o piped c.tokens
    cmp text piped
    { printf '\xef\xbb\xbf'; cat corpus.txt; } > marked
    cart-init -q -p 48 --init marked -o b c.tokens
    for f in text b; do cart-view --data $f | jq -c 'select(.name)' > $f.rows; done
    cmp text.rows b.rows
}
