#!/usr/bin/env bats
# Models as directories of SafeTensors: every tool takes them, and what comes out is what the GGUF file gives.
load ../helper/common

setup() {
    cart_setup
    cp "$CART_ROOT"/examples/manual/1-overview.md text.md
}

# cart_hub MODEL DIR [SHARDS [bf16|f16]]: the tiny model as such a directory.
cart_hub() {
    "$CART_BIN/../unit/test_hub" "$CART_TINY/$1.gguf" "$2" "${@:3}"
}

SMALL='--held-out 1 --max-a 12 --max-q 8 --chunk 32:64 --context chunk --seed 5'

# run_whole NAME: tokens, conversations, targets and a cartridge of five steps behind $CART_MODEL.
run_whole() {
    cart-tokenize -q -o "$1.tokens" text.md
    cart-selfstudy -q -n 5 $SMALL -o "$1.conv" "$1.tokens"
    cart-teacher -q -o "$1.targets" "$1.conv"
    cart-train -q -p 24 --steps 5 -o "$1.safetensors" "$1.targets"
}

@test "the same weights as GGUF and as SafeTensors: the same streams and cartridges, byte for byte" {
    for m in llama_tied llama3_untied qwen2 qwen3; do
        cart_hub $m $m.d 3
        CART_MODEL=$CART_TINY/$m.gguf run_whole want
        CART_MODEL=$m.d run_whole got
        for f in tokens conv targets safetensors; do
            cmp want.$f got.$f
        done
        cart-equiv -m $m.d -p 16 got.tokens > said
        cart_has said 'max |delta logit| = 0'
        cart-view --summary $m.d > said
        cart-view --summary "$CART_TINY/$m.gguf" > want
        cart_equal "$(grep -E 'geometry|sizes' want)" "$(grep -E 'geometry|sizes' said)"
        # A cartridge made with one form opens behind the other.
        cart-ask -q -m $m.d -c want.safetensors --max-tokens 6 'What is the lark?' > a
        cart-ask -q -m "$CART_TINY/$m.gguf" -c got.safetensors --max-tokens 6 'What is the lark?' > b
        cmp a b
    done
}

@test "the turned rows of llama: the same bytes for any threads, CPU path and precision" {
    cart_hub llama_tied d
    export CART_MODEL=d
    run_whole want
    CART_CPU=generic run_whole got
    cmp want.safetensors got.safetensors
    cart-train -q -j 3 -p 24 --steps 5 -o got want.targets
    cmp want.safetensors got
    cart-train -q --precision bf16 -p 24 --steps 3 -o a want.targets
    cart-train -q --precision bf16 -p 24 --steps 3 -m "$CART_TINY/llama_tied.gguf" -o b want.targets
    cmp a b
}

@test "weights in a narrower type are other weights, and the same numbers where they are exact" {
    cart_hub llama_tied d 1 bf16
    cart_tiny llama_tied
    run_whole want
    cart_must_fail 4 cart-teacher -q -m d -o got.targets want.conv 2> err
    cart_has err 'other weights of this model (--allow-other-weights accepts them)'
    cart-teacher -q -m d --allow-other-weights -o got.targets want.conv 2> err
    cart-view want.targets | jq -c 'select(.record == "targ")' > want
    cart-view got.targets | jq -c 'select(.record == "targ")' > got
    [ -s want ]
    cmp want got
}

@test "config.json, the index, a trailing slash: names of one model; the server calls it by its directory" {
    cart_hub qwen3 d 2
    cart-tokenize -q -m d -o want text.md
    for name in d/ d/config.json d/model.safetensors.index.json "$PWD/d"; do
        cart-tokenize -q -m "$name" -o got text.md
        cmp want got
        cart-serve --dry-run -m "$name" 2> said
        cart_has said 'cart-serve: d: would serve it'
    done
    cart-tokenize -q -m d -o want - < text.md
    (cd d && cart-tokenize -q -m config.json -o ../got - < ../text.md)
    cmp want got
}

@test "a directory is checked: whole, a shard gone, cut or of another model; nothing is written into it" {
    cart_hub qwen2 d 2
    cart-view -v --check d 2> said
    cart_has said 'd: whole and consistent: the directory of a model'
    cp -r d cut
    head -c -1 d/model-00001-of-00002.safetensors > cut/model-00001-of-00002.safetensors
    cart_must_fail 3 cart-view --check cut 2> err
    cart_has err 'cut/model-00001-of-00002.safetensors: tensor'
    rm cut/model-00001-of-00002.safetensors
    cart_must_fail 5 cart-view --check cut 2> err
    cart_has err 'cut/model-00001-of-00002.safetensors: No such file'
    cart_hub qwen3 other 2
    cp other/model-00001-of-00002.safetensors cut/
    cart_must_fail 3 cart-view --check cut 2> err
    cart_has err 'cut/model-00001-of-00002.safetensors: tensor'
    mkdir empty
    cart_must_fail 3 cart-tokenize -q -m empty -o x text.md 2> err
    cart_equal 'cart-tokenize: empty: expected a GGUF file, or a directory with config.json and SafeTensors, found no config.json' "$(cat err)"
    cart_must_fail 3 cart-tokenize -q -m d/tokenizer.json -o x text.md 2> err
    cart_equal 'cart-tokenize: d/tokenizer.json: expected a GGUF file, or the directory of a model or its config.json, found JSON without model_type' "$(cat err)"
    # The content makes it a file of JSON, not the name.
    cp d/config.json d/conf
    for o in d/model-00001-of-00002.safetensors d/new d/tokenizer.json; do
        for m in d d/ d/config.json d/conf; do
            cart_must_fail 2 cart-tokenize -q -m $m -o $o text.md 2> err
            cart_has err "in the directory of --model $m"
        done
    done
    [ ! -e d/new ]
    rm d/conf
    cart-view --check d
    # A link to nothing is not a file that may be absent: stop tokens and template would be lost without a word.
    for o in generation_config.json tokenizer_config.json chat_template.jinja config.json tokenizer.json; do
        cp -r d cut2
        ln -sf nowhere cut2/$o
        cart_must_fail 5 cart-view --check cut2 2> err
        cart_has err "cut2/$o: a symbolic link to a file that is not there"
        rm -r cut2
    done
}
