#!/usr/bin/env bats
# The commands of the manuals and of README run as they stand there, pasted into one shell in a folder that has the files
# they name: EXAMPLES of every page, the whole runs of cart(7), the run of README.
load ../helper/common
load ../helper/serve

# A tiny model whose context is long enough for the defaults of the tools: 8192 tokens.
long_model() {
    local at
    cp "$CART_TINY/llama_tied.gguf" "$1"
    at=$(grep -abo llama.context_length "$1" | cut -d: -f1)
    # The key is followed by the type, 4 bytes, and the value, little-endian.
    printf '\000\040\000\000' | dd of="$1" bs=1 seek=$((at + 20 + 4)) conv=notrunc status=none
    [ "$(cart-view "$1" | jq 'select(.key == "llama.context_length") | .value')" = 8192 ]
}

# What the pages name, made once: each test works in a copy.
setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir box
    cd box || return 1
    for t in jq mandoc tar; do command -v "$t" > /dev/null || return 0; done
    cp -R "$CART_ROOT/examples/manual" docs
    cp -R docs notes
    tar -czf notes.tar.gz notes
    long_model model.gguf
    ln -s "$CART_ROOT/pipelines" pipelines
    mkdir examples cartridges
    printf '#!/bin/sh\necho "$PWD/model.gguf"\n' > examples/fetch-model.sh
    chmod +x examples/fetch-model.sh
    cp "$CART_ROOT/examples/questions.jsonl" .
    export CART_MODEL=$PWD/model.gguf
    cart-tokenize -q -o corpus.tokens docs
    for i in 1 2; do
        cart-selfstudy -q -n 40 --held-out 4 --shard $i/2 -o corpus.conv.$((i - 1)) corpus.tokens
    done
    cart-view --cat -o corpus.conv corpus.conv.0 corpus.conv.1
    cart-teacher -q -o corpus.targets corpus.conv
    cart-train -q -p 256 --steps 4 -o manual.safetensors corpus.targets
    for name in care service; do cart-init -q -p 64 -o cartridges/$name.safetensors corpus.tokens; done
}

setup() {
    cart_setup
    cart_need_tool jq mandoc tar
    cp -R "$BATS_FILE_TMPDIR/box/." .
    export CART_MODEL=$PWD/model.gguf
    SERVE_PID=
}

teardown() {
    serve_kill
}

# indented SECTION: of a rendered page the lines that are set apart there, without their indent.
indented() {
    awk -v head="$1" '$0 == head { on = 1; next } on && /^(   )?[^ ]/ { on = 0 } on && /^           / { print substr($0, 12) }'
}

commands() { mandoc -T utf8 -O width=200 "$1" | col -bx | indented "$2"; }

# paste FILE: runs it as a person does who stops at the first thing that fails.
paste_in() {
    [ -s "$1" ] || { echo "no commands" >&2; return 1; }
    bash -e -o pipefail "$1" > said 2> words && return 0
    cat "$1" words >&2
    return 1
}

@test "every page of a tool has examples" {
    for page in "$CART_ROOT"/man/cart-*.1; do
        commands "$page" EXAMPLES > lines
        grep -q "$(basename "$page" .1)" lines || { echo "$page: none" >&2; return 1; }
    done
}

# bats test_tags=slow
@test "the examples of the tools' pages run" {
    for page in "$CART_ROOT"/man/cart-*.1 "$CART_ROOT/man/cart-cartridge.5"; do
        name=$(basename "$page")
        [ "$name" != cart-serve.1 ] || continue
        mkdir "$name"
        (
            cd "$name"
            cp -R "$BATS_FILE_TMPDIR/box/." .
            # The PDF is the reader's own; the folder is new, so that nothing is there to go on from.
            commands "$page" EXAMPLES | grep -v '^ *pdftotext' > run
            case $name in cart-train.1) rm manual.safetensors ;; cart-teacher.1) rm corpus.targets ;; esac
            paste_in run
        ) || { echo "in $name" >&2; return 1; }
    done
    # What they show is what the pages say they show.
    cart_has cart-tokenize.1/said "$(cart-tokenize --count notes/1-overview.md 2> /dev/null | jq -r .tokens) notes.tar.gz/notes/1-overview.md"
    tail -n 1 cart-tokenize.1/said | jq -se '.[0] | type == "array" and length > 5'
    cart-view --check cart-tokenize.1/notes.tokens cart-train.1/manual.safetensors cart-view.1/small.safetensors
    cart_has cart-view.1/said '6-service.md'
    cart_equal 0 "$(cart-view cart-view.1/rest.conv | jq 'select(.record == "conv" and .doc == 3)' | wc -l)"
    cart_has cart-ask.1/said '[text in context: first token'
    cart_has cart-equiv.1/said '0'
    cart_has cart-eval.1/said '"bare"'
    cmp cart-selfstudy.1/corpus.conv <(cart-selfstudy -q corpus.tokens)
}

# bats test_tags=slow
@test "the whole runs of cart(7) run" {
    commands "$CART_ROOT/man/cart.7" '   Whole runs' > run
    cart_equal 6 "$(grep -cE '^(export|cart-|make)' run)" 'commands at the start of a line'
    unset CART_MODEL
    rm manual.safetensors
    paste_in run
    cart-view --check manual.safetensors out/cartridge.safetensors
    cart_has out/evaluation.txt 'bare'
}

# bats test_tags=slow
@test "the run of README runs" {
    sed -n '/^## A run$/,/^## /s/^    //p' "$CART_ROOT/README.md" > all
    # The tools under test are on the PATH already.
    grep -v '^export PATH=' all > run
    unset CART_MODEL
    rm manual.safetensors
    paste_in run
    cart-view --check manual.safetensors out/cartridge.safetensors
}

@test "the examples of cart-serve(1) run" {
    cart_need_tool curl
    commands "$CART_ROOT/man/cart-serve.1" EXAMPLES > all
    # The first command is the server, which here takes any free port and ends with the test.
    cart_equal 1 "$(grep -c '^cart-serve' all)"
    eval "serve_start --name model $(sed -n 's/^cart-serve -m model.gguf//p' all)"
    { echo 'curl() { command curl -s --fail-with-body -m 300 "${@//localhost:8765/${URL#http://}}"; echo; }'; grep -v '^cart-serve' all; } > run
    cart_equal 4 "$(grep -c '^curl -\|^curl http' run)"
    URL=$SERVE_URL paste_in run
    serve_end
    head -n 1 said | jq -e '.choices[0].message.content and .cartridges[0].id == "manual"'
    cart_has said 'data: [DONE]'
    cart_equal 'model model:care model:manual model:service' "$(grep '^model' said | xargs)"
    tail -n 1 said | jq -e '.cartridges == 3'
}
