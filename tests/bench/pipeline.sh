#!/usr/bin/env bash
# What a pipeline of three processes costs on the cores of this machine: cart-selfstudy | cart-teacher | cart-train
# against the sum of the three run one after another on files, ROUNDS times in turns, each with all cores and with one
# (JOBS). Prints seconds of the wall clock, and of CPU time, which other work disturbs less and in which spinning against
# each other would show. The two cartridges are compared.
#   tests/bench/pipeline.sh      settings: ROUNDS (3) JOBS ("2 1") N (24) STEPS (8) CART_BIN CART_MODEL
set -eu -o pipefail
usage() { echo "pipeline.sh: $1" >&2; exit 2; }
# whole NAME VALUE: a number from 1 to 9999.
whole() { [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || usage "$1: expected a whole number from 1 to 9999, found '$2'"; }
case ${1-} in -h | --help) exec sed -n '2,/^[^#]/s/^# //p' "$0" ;; esac
[ $# = 0 ] || usage "expected no arguments but settings in the environment, found '$1'; -h tells more"
whole ROUNDS "${ROUNDS:-3}"
whole N "${N:-24}"
whole STEPS "${STEPS:-8}"
for j in ${JOBS:-1}; do whole JOBS "$j"; done
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
PATH=${CART_BIN:-$root/build/release/bin}:$PATH
CART_MODEL=${CART_MODEL:-$("$root/examples/fetch-model.sh")}
export CART_MODEL
for t in cart-tokenize cart-selfstudy cart-teacher cart-train; do
    command -v $t > /dev/null || { echo "pipeline.sh: $t: expected in ${PATH%%:*}, built by make, found none" >&2; exit 5; }
done
[ -r "$CART_MODEL" ] || { echo "pipeline.sh: CART_MODEL: expected a model, found no '$CART_MODEL' to read" >&2; exit 5; }
unset MAKEFLAGS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cart-tokenize -q -o tokens "$root/examples/manual"
study=(cart-selfstudy -q -n "${N:-24}" --held-out 4 --max-a 96)
teacher=(cart-teacher -q)
train=(cart-train -q -p 128 --steps "${STEPS:-8}")

# seconds COMMAND...: of the wall clock, and of CPU time of all its processes; standard input is the command's.
TIMEFORMAT='%R %U %S'
seconds() { { time "$@" >&3 2>&4; } 2>&1 | awk '{ print $1, $2 + $3 }'; }
pipe() {
    "${study[@]}" -j "$1" tokens | "${teacher[@]}" -j "$1" | "${train[@]}" -j "$1" -o piped
}
exec 3> /dev/null 4>&2
printf '| threads each | alone: self-study, teacher, train | sum | pipeline | ratio | CPU: sum | pipeline | ratio |\n'
printf '|---|---|---|---|---|---|---|---|\n'
for j in ${JOBS:-$(nproc) 1}; do
    for _ in $(seq "${ROUNDS:-3}"); do
        a=$(seconds "${study[@]}" -j "$j" -o talks tokens)
        b=$(seconds "${teacher[@]}" -j "$j" -o targets talks)
        c=$(seconds "${train[@]}" -j "$j" -o alone targets)
        p=$(seconds pipe "$j")
        cmp -s alone piped || { echo "pipeline.sh: the cartridges differ" >&2; exit 1; }
        echo "$j $a $b $c $p" | awk '{ s = $2 + $4 + $6; t = $3 + $5 + $7
            printf "| %s | %s, %s, %s | %.2f | %s | %.2f | %.2f | %s | %.2f |\n", $1, $2, $4, $6, s, $8, $8 / s, t, $9, $9 / t }'
        rm -f talks targets alone piped
    done
done
