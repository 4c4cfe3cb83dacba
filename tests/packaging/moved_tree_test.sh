#!/usr/bin/env bash
# Installs the build, moves the tree, takes checkout, build folder and LibTorch away, and uses the tree with a LibTorch
# that lies elsewhere.
#
#   moved_tree_test.sh BUILD_DIR SOURCE_DIR TORCH_DIR
set -euo pipefail
readonly build=$1 source=$2 torch=$3

if [[ ${4:-} != inside ]]; then
  # A mount namespace of its own, in which folders can disappear.
  unshare --user --map-root-user --mount true 2>/dev/null || {
    echo "moved_tree_test: skipped: folders cannot be mounted over here"
    exit 77
  }
  exec unshare --user --map-root-user --mount "$0" "$@" inside
fi

work=$(mktemp -d)
# Never a recursive removal of what LibTorch's own folder may still be mounted on.
trap 'cd /; umount "$work/site" 2>/dev/null; rm -rf "$work"/{tree,first,*.txt,*.json}; rmdir "$work/site" "$work"' EXIT
fail() {
  cat "$work/out.txt" >&2
  echo "moved_tree_test: $*" >&2
  exit 1
}
says() { grep -qF -- "$1" "$work/out.txt" || fail "it does not say: $1"; }

cmake --install "$build" --prefix "$work/first" >"$work/out.txt"
mkdir "$work/tree" "$work/site"
mv "$work/first" "$work/tree/capstan"
for file in "$work"/tree/capstan/{bin,libexec}/* "$work"/tree/capstan/lib/*.so; do
  readelf -d "$file" | grep -E 'RPATH|RUNPATH' | grep -vF '[$ORIGIN/../lib]' >"$work/out.txt" && fail "$file: has another RPATH"
done
head -c 4096 "$source/LICENSE" >"$work/text.txt"
cat >"$work/config.json" <<'JSON'
{"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
 "capstan": {"model": {"type": "mlp", "params": {"d": 8, "hidden": 16, "seq": 16}}}}
JSON

# LibTorch's libraries find others of the wheel beside its folder.
mount --bind "$(dirname "$torch")" "$work/site"
mount -t tmpfs none "$torch"
mount -t tmpfs none "$source"
[[ ! -e $build && -e $work/site/torch/lib/libc10.so ]] || fail "the checkout is still there"
cd "$work"
readonly capstan=$work/tree/capstan/bin/capstan
train() { "$capstan" train --config config.json --data text.txt --steps 1 >"$work/out.txt" 2>&1; }

# Nowhere: told with every place; what needs no LibTorch works.
mkdir "$work/tree/empty"
ln -sf /bin/false "$work/tree/empty/python3"
PATH=$work/tree/empty:$PATH
! train || fail "it trains without LibTorch"
says "was not found:"
says "when Capstan was built: $torch/lib: no LibTorch there"
says "beside Capstan: $work/tree/torch/lib: no LibTorch there"
says "CAPSTAN_TORCH_DIR."
"$capstan" plugins list >"$work/out.txt" || fail "plugins list"
says AdamW

# Named.
"$capstan" --version >"$work/out.txt"
says "was not found:"
CAPSTAN_TORCH_DIR=$work/site/torch "$capstan" --version >"$work/out.txt"
says "in $work/site/torch/lib"
CAPSTAN_TORCH_DIR=$work/site/torch train || fail "CAPSTAN_TORCH_DIR"
! CAPSTAN_TORCH_DIR=$work/tree train || fail "a folder without LibTorch is accepted"
says "CAPSTAN_TORCH_DIR: $work/tree/lib: no LibTorch there"

# Of the python3 on the PATH.
printf '#!/bin/sh\necho %s\n' "$work/site/torch" >"$work/tree/python3"
chmod +x "$work/tree/python3"
PATH=$work/tree:$PATH train || fail "python3"

# Beside it, as packages for Python lie. A library's neighbours are those of the folder that it is opened in.
ln -s "$work/site/torch" "$work/tree/torch"
if [[ -e $work/site/nvidia ]]; then ln -s "$work/site/nvidia" "$work/tree/nvidia"; fi
train || fail "beside Capstan"
"$capstan" --version >"$work/out.txt"
says "in $work/tree/torch/lib"
"$capstan" plugins check "$work/tree/capstan/lib/capstan/plugins/monitors/libcapstan_monitor_csv.so" --only loading/load \
  >"$work/out.txt" 2>&1 || fail "plugins check"
