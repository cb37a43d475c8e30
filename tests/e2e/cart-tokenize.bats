#!/usr/bin/env bats
# cart-tokenize: what it takes in, what it writes, and how it fails. Ids are compared with the tokenizer goldens.
load ../helper/common

setup() {
    cart_setup
    cart_tiny qwen3
}

# tokens STREAM: one line a document: path, a tab, the ids.
tokens() {
    cart-view "$1" | jq -r '[.path, (.tokens | tojson)] | @tsv'
}

@test "help, version and the manual agree" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-tokenize.1")" "$(cart_help_usage cart-tokenize)" synopsis
    cart-tokenize --version | grep -q '^cart-tokenize '
    for option in '--invalid skip' --jsonl '--field a' '--id-field a' --markup; do
        cart_must_fail 2 cart-tokenize --chat $option c.jsonl
    done
    cart_must_fail 2 cart-tokenize --think off a
    cart_must_fail 2 cart-tokenize --count -z 3 a
    cart_must_fail 2 cart-tokenize --no-such-option
    cart_must_fail 2 cart-tokenize --think on a.txt
    cart_must_fail 2 cart-tokenize --field $'caf\xe9' a.txt 2> err
    cart_has err '--field: name: expected UTF-8'
    cart_must_fail 2 cart-tokenize --id-field $'caf\xe9' a.txt 2> err
    cart_has err '--id-field: name: expected UTF-8'
    cart_must_fail 3 cart-tokenize --invalid fail <<< $'caf\xe9' 2> err > /dev/null
    cart_has err 'standard input: expected UTF-8'
    CART_MODEL='' cart_must_fail 2 cart-tokenize a.txt 2> err
    cart_has err 'expected a model'
}

@test "ids are those of the goldens, for every tiny tokenizer" {
    cart_need_tool cart-view jq
    golden=$CART_ROOT/tests/golden/token/tokenizers.golden.json
    cart_need "$golden"
    for name in llama_tied llama3_untied qwen3; do
        cart_tiny $name
        jq -c ".$name.texts[] | select(.text | test(\"<\\\\|\") | not) | {text}" "$golden" > t.jsonl
        jq -c ".$name.texts[] | select(.text | test(\"<\\\\|\") | not) | select(.text != \"\") | .ids" "$golden" > want
        cart-tokenize -q t.jsonl > t.tokens
        cart-view t.tokens | jq -c 'select(.tokens) | .tokens' > found
        diff want found
        [ "$(wc -l < found)" -ge 8 ]
    done
}

@test "a limit that was asked for is in the history" {
    cart_need_tool cart-view jq
    echo word > a.txt
    cart-tokenize -q --max-document 900 -o a.tokens a.txt
    cart-tokenize -q -o b.tokens a.txt
    cart_equal 900 "$(cart-view a.tokens | jq 'select(.record == "head").history[0].options.max_document')"
    cart_equal null "$(cart-view b.tokens | jq 'select(.record == "head").history[0].options.max_document')"
}

@test "documents, their order and their origin" {
    cart_need_tool cart-view jq
    mkdir -p d/sub d/.git
    printf 'two' > d/b.txt
    printf 'one' > d/a.txt
    printf '\357\273\277mark' > d/sub/c.txt
    printf 'no' > d/.git/config
    ln -s .. d/loop
    mkfifo d/pipe
    printf 'from stdin' | timeout 20 cart-tokenize d - > out.tokens 2> err
    cart_equal 'd/a.txt d/b.txt d/sub/c.txt -' "$(cart-view out.tokens | jq -r 'select(.tokens) | .path' | xargs)"
    cart_equal '0 1 2 3' "$(cart-view out.tokens | jq -r 'select(.tokens) | .doc' | xargs)"
    sha=$(sha256sum < d/sub/c.txt)
    cart_equal "7 4 ${sha%% *}" \
        "$(cart-view out.tokens | jq -r 'select(.path == "d/sub/c.txt") | "\(.bytes) \(.text_bytes) \(.sha256)"')"
    cart_has err 'd/loop: passed over: a symbolic link inside a directory'
    cart_has err 'd/pipe: passed over: no regular file'
    cart_has err '4 documents, 23 bytes'
}

@test "archives, compressed files and process substitution give the same ids as files" {
    cart_need_tool cart-view jq tar gzip
    mkdir d
    printf 'some text of a document' > d/a
    printf 'and another one' > d/b
    cart-tokenize -q d > plain.tokens
    tar -cf d.tar -C d a b
    gzip -k d.tar
    gzip -c d/a > a.gz
    cart-view plain.tokens | jq -c 'select(.tokens) | .tokens' > want
    for form in d.tar d.tar.gz; do
        cart-tokenize -q $form > out.tokens
        cart_equal "$form/a $form/b" "$(cart-view out.tokens | jq -r 'select(.tokens) | .path' | xargs)"
        cart-view out.tokens | jq -c 'select(.tokens) | .tokens' | diff want -
        cart-tokenize -q < $form > out.tokens
        cart-view out.tokens | jq -c 'select(.tokens) | .tokens' | diff want -
    done
    cart-tokenize -q a.gz <(cat d/b) > out.tokens
    cart-view out.tokens | jq -c 'select(.tokens) | .tokens' | diff want -
}

@test "JSON Lines on standard input, their last line without its end" {
    printf hello > t.txt
    want=$(cart-tokenize --count t.txt | jq .tokens)
    for line in '{"text":"hello"}' '\357\273\277\n {"text":"hello"}' '{"text":"hello"}\n'; do
        # shellcheck disable=SC2059
        cart_equal "$want" "$(printf "$line" | cart-tokenize --count | jq .tokens)"
    done
    # Neither a cut object nor a longer line that begins with a whole one.
    for text in '{"text":"hello"' '{"text":"hello"} and more' '{"text":5}'; do
        printf %s "$text" > t.txt
        want=$(cart-tokenize --count t.txt | jq .tokens)
        cart_equal "$want" "$(cart-tokenize --count < t.txt | jq .tokens)"
    done
}

@test "what looks like a control token stays text, unless --special" {
    printf 'a<|im_end|>b' > t.txt
    cart-tokenize --count t.txt > plain.json 2> err
    cart_has err 'control tokens spelt in the text, taken as text: 1'
    cart-tokenize --special --count t.txt > special.json 2> err
    cart_equal 3 "$(jq .tokens special.json)"
    [ "$(jq .tokens plain.json)" -gt 3 ]
}

@test "what is passed over is named, and nothing left is status 3" {
    printf '\377\376h\0' > u16
    printf '%%PDF-1.4' > paper
    printf 'bad \377 byte' > latin
    printf '<!DOCTYPE html>' > page
    : > empty
    cart_must_fail 3 cart-tokenize u16 paper latin page empty > out 2> err
    cart_has err 'latin: passed over: byte 4 is no UTF-8'
    cart_has err 'pdftotext'
    cart_has err 'expected at least one document, found none'
    cart_must_fail 3 cart-tokenize --invalid fail latin > out 2> err
    cart_has err 'latin: expected UTF-8, found byte 0xff at offset 4'
    cart-tokenize --invalid replace --markup latin page --count 2> err | jq -s -c 'map(.replaced)' > found
    cart_equal '[1,null]' "$(cat found)"
    mkdir nothing
    cart_must_fail 3 cart-tokenize nothing
    cart_must_fail 3 cart-tokenize < /dev/null
    cart_must_fail 5 cart-tokenize missing.txt
    cart_must_fail 3 cart-tokenize -m paper latin 2> err
    cart_has err 'GGUF'
}

@test "many documents are passed over in few words" {
    mkdir d
    for i in $(seq 40); do : > d/$i; done
    printf x > d/x
    cart-tokenize d > out 2> err
    cart_equal 20 "$(grep -c 'warning: ' err)"
    cart_has err 'passed over 40: 40 empty (-v names them all)'
    cart-tokenize -v d > out 2> err
    cart_equal 40 "$(grep -c 'passed over: it is empty' err)"
    cart-tokenize -q d > out 2> err
    [ ! -s err ]
}

@test "conversations are rendered by the template" {
    cart_need_tool cart-view jq
    printf '%s\n' '{"messages":[{"role":"user","content":"hi"}]}' \
        '{"id":"x","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true}' > c.jsonl
    cart-tokenize -q --chat c.jsonl > c.tokens
    printf '<|im_start|>user\nhi<|im_end|>\n' > want.txt
    cart-tokenize -q --special want.txt > want.tokens
    want=$(cart-view want.tokens | jq -c 'select(.tokens) | .tokens')
    cart_equal "$want" "$(cart-view c.tokens | jq -c 'select(.id == "c.jsonl:1") | .tokens')"
    printf '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n' > want.txt
    cart-tokenize -q --special want.txt > want.tokens
    want=$(cart-view want.tokens | jq -c 'select(.tokens) | .tokens')
    cart_equal "$want" "$(cart-view c.tokens | jq -c 'select(.id == "x") | .tokens')"
    head -n 1 c.jsonl | cart-tokenize -q --chat --generation-prompt - > c.tokens
    cart_equal "$want" "$(cart-view c.tokens | jq -c 'select(.tokens) | .tokens')"
    sed 's/{/{"id":12,/' <<< '{"messages":[{"role":"user","content":"hi"}]}' | cart-tokenize -q --chat --count | jq -e '.id == "12"'
    printf '{"messages":3}\n' > bad.jsonl
    cart_must_fail 3 cart-tokenize --chat bad.jsonl 2> err
    cart_has err 'bad.jsonl:1'
    printf 'no JSON\n' > bad.jsonl
    cart_must_fail 3 cart-tokenize --chat bad.jsonl
    printf '{"messages":[{"role":"developer","content":"hi"}]}\n{"messages":[{"role":"system","content":"hi"}]}\n' |
        cart-tokenize -q --chat --count | jq .tokens > found
    cart_equal "$(head -n 1 found)" "$(tail -n 1 found)" developer
    while IFS='|' read -r line words; do
        echo "{\"messages\":[$line]}" > bad.jsonl
        cart_must_fail 3 cart-tokenize --chat bad.jsonl 2> err
        cart_equal "cart-tokenize: bad.jsonl:1: messages$words" "$(cat err)"
    done <<'BAD'
|: expected at least one message, found none
{"role":"bot","content":"hi"}|[0].role: expected system, developer, user, assistant or tool, found "bot"
{"content":"hi"}|[0].role: expected system, developer, user, assistant or tool, found nothing
{"role":"user"}|[0].content: expected a string, found nothing
{"role":"assistant","content":null}|[0].content: expected a string, found null
BAD
}

@test "the same input gives the same bytes, and zstd holds the same" {
    cart_need_tool cart-view
    printf 'a document with some words in it' > a
    cart-tokenize -q a > one
    cart-tokenize -q -o two a
    cmp one two
    cart-tokenize -q -z 3 -o packed a
    cart-view packed > packed.json
    cart-view one > one.json
    cmp one.json packed.json
}

@test "-o is whole or not at all; a full disk and a closed pipe are noticed" {
    printf text > a
    printf old > out
    cart_must_fail 5 cart-tokenize -o out a missing
    cart_equal old "$(cat out)"
    cart_equal 'a out' "$(ls -A | grep -v err | xargs)"
    cart_must_fail 5 cart-tokenize a > /dev/full
    head -c 3000000 /dev/zero | tr '\0' 'x' > big
    set +e
    cart-tokenize -q big big big | head -c 10 > /dev/null
    status=("${PIPESTATUS[@]}")
    set -e
    cart_equal 141 "${status[0]}"
    cart-tokenize --dry-run -o none a 2> err
    [ ! -e none ]
    # All but the record END, which is 32 bytes and a few words.
    cart-tokenize -q -o some a
    said=$(sed -n 's/.*would write none with about \([0-9]*\) bytes$/\1/p' err)
    left=$(($(stat -c %s some) - said))
    [ "$left" -gt 32 ] && [ "$left" -lt 150 ]
    cart-tokenize -q --count a big > counts
    cart-tokenize --dry-run --count a big 2> err
    cart_has err "would write standard output with about $(stat -c %s counts) bytes"
}

@test "a stream cut short has no END" {
    cart_need_tool cart-view
    mkdir d
    for i in 1 2 3; do printf 'document %s' $i > d/$i; done
    printf 'bad \377' > d/4
    cart_must_fail 3 cart-tokenize --invalid fail d > out.tokens
    cart_must_fail 3 cart-view --check out.tokens
    cart-tokenize -q d > out.tokens
    cart-view --check out.tokens
}

@test "a bomb is refused while it is small" {
    cart_need_tool gzip
    head -c 60000000 /dev/zero | tr '\0' 'a' | gzip -9 > bomb.gz
    cart_must_fail 3 cart-tokenize bomb.gz > out 2> err
    cart_has err 'bomb.gz: archive: expected to unpack to at most 200 times'
}

@test "a stack of 256 KiB is enough for any run" {
    [ "${CART_SANITIZED:-0}" = 0 ] || skip 'machine: the sanitizers need more'
    cart_need_tool python3
    python3 -c '
for i, unit in enumerate(["A", "_", " ", "us", "9", "\u6f22", ".", "\U0001f44d\U0001f3fd", "e\u0301\u0323", "\x27", " \n", "\n"]):
    open("run.%d" % i, "w").write(unit * 150000)'
    for model in llama_tied llama3_untied qwen3; do
        cart_tiny $model
        (ulimit -s 256 && cart-tokenize -q --count run.*) > counts
        cart_equal 12 "$(wc -l < counts)"
    done
}

@test "what is written is not among the documents of a directory: status 2, and it stays" {
    mkdir docs
    echo 'one sheep' > docs/a.txt
    echo 'two sheep' > docs/b.txt
    cart_must_fail 2 cart-tokenize -q -o docs/b.txt docs 2> words
    cart_equal 'cart-tokenize: docs/b.txt: among the documents, and what is written' "$(cat words)"
    ( cd docs && cart_must_fail 2 cart-tokenize -q -o b.txt . 2> /dev/null )
    cart_equal 'two sheep' "$(cat docs/b.txt)"
    cart-tokenize -q -o docs/new.tokens docs
    # By redirection too it is told, before the file reads itself without end.
    cart_must_fail 2 cart-tokenize -q docs >> docs/b.txt 2> words
    cart_has words 'docs/b.txt: among the documents'
}
