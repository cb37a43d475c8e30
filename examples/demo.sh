#!/bin/sh
# The whole way on real documents: examples/manual, an invented product's manual that no model can know, becomes a
# cartridge; then the evaluation table, and three questions answered bare, with the text in context, and behind the
# cartridge. A second run redoes nothing that is done. Settings: OUT (build/demo, or ~/.cache/cart/demo where installed), P, N, HELDOUT, STEPS, SEED.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(dirname -- "$here")
# In the source tree the tools are in build/; installed, they are on the PATH and the tree is nobody's to write in.
if [ -z "${CART_BIN-}" ] && [ -x "$root/build/release/bin/cart-train" ]; then
    CART_BIN=$root/build/release/bin
elif [ -z "${CART_BIN-}" ]; then
    CART_BIN=$(dirname "$(command -v cart-train)")
fi
export CART_BIN
if [ -f "$root/GNUmakefile" ]; then
    out=${OUT:-$root/build/demo}
else
    out=${OUT:-${XDG_CACHE_HOME:-$HOME/.cache}/cart/demo}
fi
p=${P:-256}
# A small model's own questions teach less than the sentences themselves: six conversations of ten recite.
talks=${SELFSTUDY_OPTS---seed-types recite:10,structuring,summarisation,question,use-case,creative,mechanism,verbatim}

model=${CART_MODEL:-$("$here/fetch-model.sh")}
export CART_MODEL="$model"
mkdir -p "$out"
cd "$root"

step() { printf '\n== %s\n' "$*"; }

stages() {
    make --no-print-directory -f pipelines/cartridge.mk DOCS=examples/manual OUT="$out" P="$p" N="${N:-280}" \
        HELDOUT="${HELDOUT:-24}" STEPS="${STEPS:-250}" SEED="${SEED:-1}" SELFSTUDY_OPTS="$talks" QUESTIONS=examples/questions.jsonl "$@"
}

step "train a cartridge of $p rows on examples/manual (stages in $out)"
stages all
step 'how good is it: 30 questions on the manual, and conversations kept from training'
stages eval
step 'three questions, side by side'
for question in 'Who designed the Brennick R6?' 'What do six blinks of the pip mean?' 'Where does the workshop stand?'; do
    "$CART_BIN/cart-ask" -c "$out/cartridge.safetensors" --text examples/manual --compare --max-tokens 48 "$question"
done
printf '\nAsk it yourself:\n  CART_MODEL=%s %s/cart-ask -c %s/cartridge.safetensors\n' "$model" "$CART_BIN" "$out"
