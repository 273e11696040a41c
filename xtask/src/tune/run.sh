#!/usr/bin/env bash
# Measures the tiles that our kernels could take, on this machine's GPU. Needs the NVIDIA driver and NVRTC (a toolkit, or its
# Python wheel); no Rust, no files beside this folder.
#
#   run.sh [arguments of tune]      e.g. run.sh --path mma --case d128 --seconds 120
#
# OUT names the folder for the report (./out without it).
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
mkdir -p "$out" || exit 2

"$here/tune" --date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" --out "$out/tuning.json" "$@" 2>&1 | tee "$out/tuning.log"
exit "${PIPESTATUS[0]}"
