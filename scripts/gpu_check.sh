#!/usr/bin/env bash
# One command for a machine with an NVIDIA GPU, nvcc 12.8 or newer, torch, cmake and ninja; no network.
#
#   scripts/gpu_check.sh [OUT] [options of tests/gpu/gpu_check.py]      default OUT: build/gpu-check
#   scripts/gpu_check.sh build/rehearsal --rehearse                     on a machine without a GPU
#
# Builds the plugin for the GPU, proves its accuracy there, times it, runs it under compute-sanitizer, computes ANDREA-120M
# with it, and, where TensorRT or TensorRT-RTX can be imported, builds and times engines and compares their layers with
# torch's. All of it ends in under six minutes, or says which part did not. What is missing is reported as
# "not available", with the reason. PYTHON names the interpreter; ANDREA_GPU_PARTS a folder of parts from gpu_pack.sh
# (default: build/gpu-pack), which are joined and put on PYTHONPATH.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
out=$repository/build/gpu-check
if [[ $# -gt 0 && $1 != -* ]]; then
  out=$1
  shift
fi
parts=${ANDREA_GPU_PARTS:-$repository/build/gpu-pack}
mkdir -p "$out"

if [[ -d $parts ]]; then
  # One site folder a group; a group whose parts are not all here, or are damaged, is named and left out.
  while read -r site; do
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  done < <("$python" "$repository/tests/support/gpu_archive.py" join "$parts" "$out/site")
fi

exec "$python" "$repository/tests/gpu/gpu_check.py" "$out" "$@"
