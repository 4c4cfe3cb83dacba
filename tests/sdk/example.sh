#!/usr/bin/env bash
# example.sh BUILD TORCH SOURCE: builds an example plugin against nothing but the installed SDK, runs its tests
# where it has some, and checks it.
set -euo pipefail
readonly build=$1 torch=$2 source=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component sdk --prefix "$work/prefix" >/dev/null
cp -r "$source" "$work/source"
{
  env -i PATH="$PATH" HOME="$work" cmake -S "$work/source" -B "$work/build" -G Ninja \
    -DCMAKE_PREFIX_PATH="$work/prefix" -DCAPSTAN_TORCH_DIR="$torch" -DCMAKE_C_FLAGS="-Wall -Wextra -pedantic" -DCMAKE_CUDA_ARCHITECTURES=90 &&
    env -i PATH="$PATH" HOME="$work" cmake --build "$work/build"
} >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
if grep 'warning:' "$work/log"; then exit 1; fi
ctest --test-dir "$work/build" --output-on-failure
for plugin in "$work"/build/lib/capstan/plugins/*/libcapstan_*.so; do
  "$build/tests/check_plugin" "$plugin"
done
for plugin in "$work"/build/lib/capstan/emulated/libcapstan_*.so; do
  [[ -e $plugin ]] || continue
  on_host=$work/build/lib/capstan/plugins/optimizers/$(basename "$plugin" | sed 's/\(_cuda\)\?_on_cpu//')
  "$build/bin/capstan" plugins check "$plugin" --device emulated --beside "$on_host"
done
