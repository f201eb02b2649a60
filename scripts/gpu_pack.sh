#!/usr/bin/env bash
# Prepares what a GPU machine without network lacks: wheels for its Python, recompressed, split into parts of at most 60 MB.
#
#   scripts/gpu_pack.sh [OUT] [PYTHON_VERSION] [GROUP …]      default: build/gpu-pack 3.12, every group
#
# Groups, in the order in which they should be carried over: what the package imports, TensorRT-RTX, onnxruntime-gpu. Each
# is an xz archive (the standard library of any Python reads it) cut into GROUP-cp312.tar.xz.000, .001, … beside SHA256SUMS.
# scripts/gpu_check.sh joins the groups whose parts it finds. Needs pip and network here; PYTHON names the interpreter.
#
# Packed once for Python 3.12, in MB: 1-package 4; 3-onnxruntime-gpu (1.31.1, a wheel of 256) 60 + 60 + 60 + 23. xz at its
# tightest took 7 minutes of a core for the latter.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
out=${1:-$repository/build/gpu-pack}
version=${2:-3.12}
platforms=()
for glibc in 39 38 35 34 31 28 27 24 17 12 5; do
  platforms+=(--platform "manylinux_2_${glibc}_x86_64")
done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform linux_x86_64)

declare -A groups=(
  [1-package]="ml-dtypes onnx-ir onnxscript polygraphy pydantic pydantic-core annotated-types typing-inspection
    rich markdown-it-py mdurl pygments typer shellingham annotated-doc click safetensors"
  [2-tensorrt-rtx]="tensorrt-rtx-cu13-bindings==1.7.1.116 tensorrt-rtx-cu13-libs==1.7.1.116"
  [3-onnxruntime-gpu]="onnxruntime-gpu flatbuffers"
)
# On PyPI as sources only; pure Python, so that any interpreter makes the wheel.
declare -A sources=([2-tensorrt-rtx]="tensorrt-rtx-cu13==1.7.1.116")
asked=("${@:3}")
if [[ ${#asked[@]} -eq 0 ]]; then
  mapfile -t asked < <(printf '%s\n' "${!groups[@]}" | sort)
fi
mkdir -p "$out"
for group in "${asked[@]}"; do
  if [[ -z ${groups[$group]:-} ]]; then
    echo "unknown group $group; groups: $(printf '%s\n' "${!groups[@]}" | sort | tr '\n' ' ')" >&2
    exit 2
  fi
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  # shellcheck disable=SC2086  # the group is a list of words
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --constraint "$repository/constraints.txt" \
    --python-version "$version" --implementation cp --abi "cp${version/./}" --abi abi3 --abi none \
    "${platforms[@]}" --dest "$wheels" ${groups[$group]}
  if [[ -n ${sources[$group]:-} ]]; then
    # shellcheck disable=SC2086
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheels" ${sources[$group]}
  fi
  "$python" "$repository/tests/support/gpu_archive.py" pack "$wheels" "$out" "$group-cp${version/./}"
  rm -rf "$wheels"
done
