#!/usr/bin/env bash
# Runs ONNX's attention cases and graphs as models have them through ONNX Runtime with the plugin, on this machine's GPU.
# Needs the NVIDIA driver, NVRTC and cuBLASLt (a toolkit, or their Python wheels), and Python 3.12 with numpy and protobuf.
#
#   run.sh [arguments of run.py]      e.g. run.sh --seed 7
#
# OUT names the folder for the report (./out without it). ONNX Runtime and ONNX come from wheels/ beside this file, and are
# unpacked, not installed; WHEELS=0 uses those of the machine instead.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" || exit 2
python=${PYTHON:-python3}

if [ "${WHEELS:-1}" != 0 ]; then
    unpacked=$(mktemp -d) || exit 2
    trap 'rm -rf "$unpacked"' EXIT
    for wheel in "$here"/wheels/*.whl; do
        "$python" -m zipfile -e "$wheel" "$unpacked/unpacked" || exit 2
    done
    export PYTHONPATH="$unpacked/unpacked${PYTHONPATH:+:$PYTHONPATH}"
fi

"$python" "$here/python/run.py" --plugin "$here/libcuattn_ort.so" --out "$OUT/onnx.json" \
    --commit "$(cat "$here/commit.txt")" "$@"
