#!/usr/bin/env bash
# Compares our attention with PyTorch's and FlashAttention-3 on this machine's GPU. Needs Python with PyTorch; no Rust.
#
#   run.sh [arguments of compare.py]      e.g. run.sh --suite prefill masks --seconds 300
#
# OUT names the folder for the report (./out without it). Wheels of FlashAttention-3 that lie in wheels/ beside this file are
# unpacked and compared with; nothing is installed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" || exit 2

unpacked=$(mktemp -d) || exit 2
trap 'rm -rf "$unpacked"' EXIT
for wheel in "$here"/wheels/*.whl; do
    [ -e "$wheel" ] || continue
    "${PYTHON:-python3}" -m zipfile -e "$wheel" "$unpacked/$(basename "$wheel" .whl)" || exit 2
    export PYTHONPATH="$unpacked/$(basename "$wheel" .whl)${PYTHONPATH:+:$PYTHONPATH}"
done

"${PYTHON:-python3}" "$here/peers/compare.py" --library "$here/libcuattn_bench.so" --out "$OUT/peers.json" "$@"
