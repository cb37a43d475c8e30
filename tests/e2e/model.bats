#!/usr/bin/env bats
# bats file_tags=slow
# The whole way with real weights, the demo model of examples/fetch-model.sh.
load ../helper/common

setup() {
    cart_setup
    export CART_MODEL=${XDG_CACHE_HOME:-$HOME/.cache}/cart/SmolLM2-135M-Instruct.Q4_1.gguf
    cart_need "$CART_MODEL"
}

# The Python package that people open safetensors files with.
python_safetensors() {
    python=${XDG_CACHE_HOME:-$HOME/.cache}/cart/venv/bin/python3
    if [ ! -x "$python" ]; then
        python3 -m venv "${XDG_CACHE_HOME:-$HOME/.cache}/cart/venv" &&
            "$python" -m pip -q --disable-pip-version-check install safetensors numpy || skip 'machine: no Python package safetensors'
    fi
}

@test "documents, one pipe, a cartridge that Python opens and that answers" {
    cart-tokenize -q "$CART_ROOT/examples/manual" | cart-selfstudy -q -n 8 --held-out 2 --max-a 48 | cart-teacher -q |
        cart-train -q -p 64 --steps 3 -o x.safetensors
    cart-view --check x.safetensors
    answer=$(cart-ask -q -c x.safetensors --max-tokens 12 'What is the lark of the Brennick R6?')
    [ -n "$answer" ]
    python_safetensors
    "$python" - <<'PY'
from safetensors import safe_open
with safe_open("x.safetensors", "numpy") as f:
    meta = f.metadata()
    names = set(f.keys())
    assert meta["cart.p"] == "64" and meta["cart.frozen"] == "1", meta
    assert len(names) == 30 * 4, len(names)
    assert f.get_tensor("layers.29.k").shape == (63, 3, 64)
    assert f.get_tensor("layers.0.v_sink").shape == (1, 3, 64)
PY
}

@test "an untrained cartridge is the real prefill, bit for bit" {
    cart-tokenize -q -o c.tokens "$CART_ROOT/examples/manual"
    cart-equiv -p 256 c.tokens > said
    cart_has said 'max |delta logit| = 0'
    cart_has said 'greedy agreement 128/128'
}

@test "a few steps bring the held-out KL below that of the untrained rows" {
    cart-tokenize -q "$CART_ROOT/examples/manual" > c.tokens
    cart-selfstudy -q -n 24 --held-out 4 --max-a 64 --seed 2 c.tokens | cart-teacher -q > c.targets
    cart-train -q -p 96 --steps 10 --metrics m.jsonl -o t.safetensors c.targets
    jq -es 'map(select(.split == "held-out") | .kl) | last < 0.9 * first' m.jsonl
}

@test "the demo, at a size for tests: every stage, the table, three answers, nothing done twice" {
    export OUT=$PWD/demo P=48 N=4 HELDOUT=2 STEPS=2 SELFSTUDY_OPTS=
    "$CART_ROOT/examples/demo.sh" > said 2> words
    for arm in 'bare' 'whole text' 'text 48' 'untrained'; do
        grep -q "^$arm  .*%" said
    done
    [ "$(grep -c '^\[cartridge: ' said)" -eq 3 ]
    touch stamp
    sleep 1
    (cd "$CART_ROOT" && make -s -f pipelines/cartridge.mk DOCS=examples/manual OUT="$OUT" P=48 N=4 HELDOUT=2 STEPS=2 SEED=1 \
        QUESTIONS=examples/questions.jsonl all)
    [ -z "$(find demo -newer stamp -type f)" ]
}
