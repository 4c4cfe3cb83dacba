#!/usr/bin/env bash
# stub_libraries.sh TORCH_LIB_DIR OUT: makes, in OUT, the libraries that LibTorch for CUDA needs and this machine lacks,
# so that it can be loaded. Their functions end the process: what is tested is what happens before a GPU is used.
set -euo pipefail
torch=$1 out=$2
mkdir -p "$out"
libraries=("$torch/libtorch_cuda.so" "$torch/libtorch_nvshmem.so")
undefined=$(nm -D --undefined-only --with-symbol-versions "${libraries[@]}" | awk 'NF > 1 {print $NF}' | sort -u)
for soname in $(ldd "${libraries[@]}" | awk '/not found/ {print $1}' | sort -u); do
  # The functions of a library carry its soname as their version, or begin with its name: cuFileRead of libcufile.so.0.
  name=${soname#lib} && name=${name%%.so*} && name=${name%_host}
  functions=$(grep -iE "@$soname\$|^$name" <<<"$undefined" || true)
  sed -nE 's/^([^@]+).*/void \1(void) { __builtin_trap(); }/p' <<<"$functions" >"$out/$soname.c"
  awk -F@ 'NF > 1 {of[$NF] = of[$NF] " " $1 ";"} END {for (version in of) print version, "{" of[version], "};"}' \
    <<<"$functions" >"$out/$soname.version"
  version=()
  [[ -s "$out/$soname.version" ]] && version=("-Wl,--version-script=$out/$soname.version")
  "${CC:-cc}" -shared -fPIC -w -o "$out/$soname" "$out/$soname.c" -Wl,-soname,"$soname" "${version[@]}"
done
