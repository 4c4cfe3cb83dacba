#!/usr/bin/env bash
# template.sh BUILD TORCH KIND [VARIANT]: makes a plugin of that kind from its template, builds and tests it against nothing but the
# installed SDK, and looks at the file that comes out.
set -euo pipefail
readonly build=$1 torch=$2 kind=$3 variant=${4-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component sdk --prefix "$work/prefix" >/dev/null
"$build/tests/new_plugin" acme-signum "$kind" "$work/acme-signum" "$variant"

# A clean environment: nothing of this tree may be needed.
clean() { env -i PATH="$PATH" HOME="$work" OMP_NUM_THREADS=2 "$@"; }
cd "$work/acme-signum"
options=(-G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CUDA_ARCHITECTURES=90)
case $kind-$variant in
  optimizer-* | model- | observer-?* | compression-* | dataset-* | metric-*) options+=(-DCAPSTAN_TORCH_DIR="$torch") ;;
  *) options+=(-DCAPSTAN_TORCH_DIR=/nowhere) ;;  # builds where there is no LibTorch
esac
clean cmake -B build "${options[@]}" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
clean cmake --build build >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
if grep -q 'warning:' "$work/log"; then cat "$work/log"; exit 1; fi
# This template has the kit's tests alone, which need the program.
no_tests=error
if [[ $variant == tensors ]]; then no_tests=ignore; fi
clean ctest --test-dir build --output-on-failure --no-tests=$no_tests

plugin=build/lib/capstan/plugins/${kind}s/libcapstan_acme_signum.so
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | tr '\n' ' ')
[[ $exported == 'capstan_plugin_v1 ' ]] || { echo "exports: $exported"; exit 1; }
if readelf -d "$plugin" | grep -E 'RUNPATH|RPATH'; then exit 1; fi
if [[ $kind == optimizer || $kind == compression ]] && nm -D --undefined-only "$plugin" | grep -E '_ZN?K?(2at|3c10|5torch)'; then
  echo "the stable tier must not need LibTorch's C++ symbols"
  exit 1
fi
if strings "$plugin" | grep -F "$work"; then echo "the builder's paths are in the file"; exit 1; fi
"$build/tests/load_plugin" "$PWD/$plugin"
"$build/tests/check_plugin" "$PWD/$plugin"
if [[ $variant == tensors ]]; then "$build/bin/capstan" plugins check "$PWD/$plugin" --device emulated; fi
