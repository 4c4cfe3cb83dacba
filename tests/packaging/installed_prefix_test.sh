#!/usr/bin/env bash
# Installs the build into a prefix, moves the prefix, builds the example against it and trains; builds a plugin and its
# author's tests with the installed conformance library.
#
#   installed_prefix_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
readonly build=$1 source=$2
. "$(dirname "$0")/common.sh"

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
! grep -rlF "$build" "$work/prefix" || fail "the files above name the build folder"

"$work/prefix/bin/capstan" train --config "$source/examples/custom_module/ds_config.json" --model mlp \
  --data "$source/LICENSE" --steps 2 >"$work/train.log" 2>&1 || { cat "$work/train.log"; fail "capstan train"; }
grep -q "$work/prefix/lib/capstan/plugins/models/libcapstan_model_mlp.so" "$work/train.log" || fail "not its own plugins"

cp -r "$source/examples/custom_module" "$work/example"
cmake -S "$work/example" -B "$work/example/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; fail "configure"; }
! grep -q Warning "$work/configure.log" || { cat "$work/configure.log"; fail "the package warns"; }
cmake --build "$work/example/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "build"; }

cd "$work/example"
build/custom_module "$source/LICENSE" ds_config.json 60 >"$work/run.log" 2>&1 || { cat "$work/run.log"; fail "run"; }
cat "$work/run.log"
awk '/^step 1 / {first = $4} /^step 60 / {last = $4} END {exit !(first > 5 && last > 0 && last < 3.2)}' "$work/run.log" ||
  fail "it did not learn"
[[ $(cat checkpoints/latest) == global_step60 ]] || fail "no checkpoint"

# Two processes speak once, and train on more samples than one process with its share of the batch would.
"$work/prefix/bin/capstan" launch -n 2 build/custom_module "$source/LICENSE" ds_config.json 20 >"$work/two.log" 2>&1 ||
  { cat "$work/two.log"; fail "run of two processes"; }
sed 's/"train_batch_size": 32/"train_batch_size": 16/' ds_config.json >half.json
build/custom_module "$source/LICENSE" half.json 20 >"$work/half.log" 2>&1 || { cat "$work/half.log"; fail "half a batch"; }
[[ $(grep -c '^step 20 loss' "$work/two.log") == 1 && $(grep -c '^saved ' "$work/two.log") == 1 ]] ||
  { cat "$work/two.log"; fail "not one process speaks"; }
awk '/^step 20 loss/ {loss[++runs] = $4} END {d = loss[1] - loss[2]; exit !(runs == 2 && (d > 1e-3 || d < -1e-3))}' \
  "$work/two.log" "$work/half.log" || { cat "$work/two.log" "$work/half.log"; fail "both processes draw the same samples"; }

# A student begins with its teacher's layers: after a few updates it is where the teacher is, not where bytes begin (5.5).
cp -r "$source/examples/distillation" "$work/distillation"
cmake -S "$work/distillation" -B "$work/distillation/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/distillation.log" 2>&1 &&
  cmake --build "$work/distillation/build" >>"$work/distillation.log" 2>&1 ||
  { cat "$work/distillation.log"; fail "build of the distillation"; }
(cd "$work/distillation" && build/distillation "$source/LICENSE" 20) >"$work/distillation.log" 2>&1 ||
  { cat "$work/distillation.log"; fail "run of the distillation"; }
awk '/^eval_loss / {loss = $2} END {exit !(loss > 0.5 && loss < 3.4)}' "$work/distillation.log" ||
  { cat "$work/distillation.log"; fail "the student did not learn"; }

# The conformance kit as a GoogleTest library.
cmake -S "$source/tests/packaging/conformance" -B "$work/conformance" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DSIGNUM="$source/examples/plugins/signum" >"$work/kit.log" 2>&1 &&
  cmake --build "$work/conformance" >>"$work/kit.log" 2>&1 || { cat "$work/kit.log"; fail "build of the conformance tests"; }
"$work/conformance/signum_conforms" >"$work/kit.log" 2>&1 || { cat "$work/kit.log"; fail "Signum does not conform"; }
grep -q 'OK \] .*optimizer/Signum/shard_invariance' "$work/kit.log" || { cat "$work/kit.log"; fail "no case was run"; }

# A manifest with errors fails the build of a plugin, with the manifest's own words.
cp -r "$source/examples/plugins/cosine_in_c" "$work/cosine"
sed -i 's/^version = /verson = /' "$work/cosine/plugin.toml"
cmake -S "$work/cosine" -B "$work/cosine/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/cosine.log" 2>&1 ||
  { cat "$work/cosine.log"; fail "configuring a plugin in C"; }
! cmake --build "$work/cosine/build" >"$work/cosine.log" 2>&1 || fail "a manifest with errors was built"
grep -qF "manifest:3:1: verson: unknown key. Did you mean 'version'?" "$work/cosine.log" ||
  { cat "$work/cosine.log"; fail "the build does not say what is wrong with the manifest"; }

# A LibTorch that is not the one it was built with is refused when a project is configured.
sed -i 's/if(NOT CAPSTAN_TORCH_BUILD_ID STREQUAL "[0-9a-f]*")/if(NOT CAPSTAN_TORCH_BUILD_ID STREQUAL "0123")/' \
  "$work/prefix/lib/cmake/Capstan/CapstanConfig.cmake"
! cmake -S "$work/example" -B "$work/other" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/other.log" 2>&1 ||
  fail "another LibTorch was accepted"
tr -s '\n ' ' ' <"$work/other.log" | grep -qF "Mixing them would corrupt tensors silently. Point CAPSTAN_TORCH_DIR at that wheel" ||
  { cat "$work/other.log"; fail "another LibTorch: no reason given"; }
