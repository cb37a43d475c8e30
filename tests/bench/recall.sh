#!/bin/sh
# How well cartridges of P rows recall examples/manual, over several seeds: self-study, targets, training and evaluation
# with all 68 questions, once per seed. Long: tens of minutes on two cores.
#   tests/bench/recall.sh [OUT]     settings: P (512) N (320) STEPS (300) SEEDS ("1 2 3") SELFSTUDY_OPTS TRAIN_OPTS
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
export CART_BIN="${CART_BIN:-$root/build/release/bin}"
CART_MODEL=${CART_MODEL:-$("$root/examples/fetch-model.sh")}
export CART_MODEL
out=${1:-$root/build/recall}
mkdir -p "$out"
cd "$root"
cat examples/questions.jsonl examples/questions-more.jsonl > "$out/questions.jsonl"
talks=${SELFSTUDY_OPTS---seed-types recite:21,structuring,summarisation,question,use-case,creative,mechanism,verbatim}
for seed in ${SEEDS:-1 2 3}; do
    make --no-print-directory -s -f pipelines/cartridge.mk DOCS=examples/manual OUT="$out/$seed" P="${P:-512}" N="${N:-320}" \
        HELDOUT=24 STEPS="${STEPS:-300}" SEED="$seed" SELFSTUDY_OPTS="$talks" TRAIN_OPTS="${TRAIN_OPTS-}" \
        QUESTIONS="$out/questions.jsonl" eval
done
