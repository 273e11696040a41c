#!/usr/bin/env bash
# Runs the parity suites on this machine's GPU, then the reduced suites under compute-sanitizer where the machine has it.
# Needs the NVIDIA driver, NVRTC and cuBLASLt (a toolkit, or their Python wheels); no Rust, no files beside this folder.
#
#   run.sh [arguments of gpu-suites]      e.g. run.sh --suite flash --seed 7
#
# OUT names the folder for the report and the logs (./out without it). SANITIZE=0 leaves compute-sanitizer out.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
mkdir -p "$out" || exit 2

"$here/gpu-suites" --report "$out/gpu-report.json" "$@" 2>&1 | tee "$out/suites.log"
suites=${PIPESTATUS[0]}

sanitizer=0
if [ "${SANITIZE:-1}" != 0 ] && [ -f "$out/gpu-report.json" ]; then
    "$here/gpu-suites" sanitize --if-available --report "$out/gpu-report.json" --logs "$out/sanitizer" 2>&1 |
        tee "$out/sanitizer.log"
    sanitizer=${PIPESTATUS[0]}
fi

[ "$suites" -eq 0 ] && [ "$sanitizer" -eq 0 ]
