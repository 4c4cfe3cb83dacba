#!/usr/bin/env bash
# Builds a vendor's accelerator and an optimizer for it against an installed Capstan, and trains on it by its type's name:
# ZeRO stages 0, 2 and 3 in two processes, with the losses of the CPU.
#
#   vendor_accelerator_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
readonly build=$1 source=$2
. "$(dirname "$0")/common.sh"

cmake --install "$build" --prefix "$work/prefix" >/dev/null
rm -r "$work/prefix/lib/capstan/emulated" "$work/prefix/lib/libcapstan_emulated_device.so"
{
  cmake -S "$source/tests/packaging/accelerator" -B "$work/npu" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DEMULATED="$source/sdk/emulated" -DSIGNUM="$source/examples/plugins/signum" &&
    cmake --build "$work/npu"
} >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "build of the accelerator"; }

cat >"$work/ds_config.json" <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
 "optimizer": {"type": "Signum", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 0}}
JSON
losses() { # NAME PLUGINS ARGUMENT..
  local name=$1 plugins=$2
  shift 2
  CAPSTAN_EMULATED_ABORT=1 "$work/prefix/bin/capstan" launch -n 2 train --config "$work/ds_config.json" --model gpt:tiny \
    --data "$source/LICENSE" --steps 3 --seed 3 --plugin-path "$plugins" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log"; fail "training: $name"; }
  grep -oE 'loss [0-9.]+' "$work/$name.log" >"$work/$name.losses" || { cat "$work/$name.log"; fail "no losses: $name"; }
}
cmake -S "$source/examples/plugins/signum" -B "$work/signum" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null &&
  cmake --build "$work/signum" --target capstan_optimizer_signum >/dev/null || fail "build of signum"
# Optimizers of others that know no device: they update in host memory.
for example in adam8bit prodigy; do
  cmake -S "$source/examples/plugins/$example" -B "$work/$example" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null &&
    cmake --build "$work/$example" --target "capstan_optimizer_$example" >/dev/null || fail "build of $example"
done
for type in Adam8bit Prodigy; do
  plugins=$work/${type,,}/lib/capstan/plugins
  losses "cpu-$type" "$plugins" --device cpu --set "optimizer={\"type\": \"$type\"}"
  for stage in 1 3; do
    losses "$type-$stage" "$plugins" --plugin-path "$work/npu/lib/capstan/plugins" --device npu \
      --set "optimizer={\"type\": \"$type\"}" --set "zero_optimization.stage=$stage"
    diff "$work/cpu-$type.losses" "$work/$type-$stage.losses" || fail "$type, stage $stage: other losses than on the CPU"
  done
done

losses cpu "$work/signum/lib/capstan/plugins" --device cpu
for stage in 0 2 3; do
  losses "stage$stage" "$work/npu/lib/capstan/plugins" --device npu --set "zero_optimization.stage=$stage"
  grep -q "training on npu:0" "$work/stage$stage.log" || { cat "$work/stage$stage.log"; fail "not on the vendor's device"; }
  diff "$work/cpu.losses" "$work/stage$stage.losses" || fail "stage $stage: other losses than on the CPU"
done

# The kit takes the device by its name, too.
"$work/prefix/bin/capstan" plugins check "$work"/npu/lib/capstan/plugins/optimizers/libcapstan_optimizer_signum_npu.so \
  --device npu >"$work/check.log" 2>&1 && fail "a device that no search finds was found"
CAPSTAN_PLUGIN_PATH="$work/npu/lib/capstan/plugins" "$work/prefix/bin/capstan" plugins check \
  "$work"/npu/lib/capstan/plugins/optimizers/libcapstan_optimizer_signum_npu.so --device npu >"$work/check.log" 2>&1 ||
  { cat "$work/check.log"; fail "the optimizer does not conform on its device"; }
grep -q "^passed  optimizer/Signum/device_waits" "$work/check.log" || { cat "$work/check.log"; fail "no case on the device"; }
