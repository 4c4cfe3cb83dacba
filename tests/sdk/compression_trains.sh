#!/usr/bin/env bash
# compression_trains.sh BUILD TORCH SOURCE: builds the third-party compression against nothing but the installed SDK, installs it, and
# trains with it: stage 3 on two processes gives the losses of stage 0, a run without it gives others. The export has its codes.
set -euo pipefail
readonly build=$1 torch=$2 source=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component sdk --prefix "$work/prefix" >/dev/null
cp -r "$source" "$work/source"
{
  env -i PATH="$PATH" HOME="$work" cmake -S "$work/source" -B "$work/build" -G Ninja \
    -DCMAKE_PREFIX_PATH="$work/prefix" -DCAPSTAN_TORCH_DIR="$torch" &&
    env -i PATH="$PATH" HOME="$work" cmake --build "$work/build"
} >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

cd "$work"
fail() { echo "$*"; cat out.txt; exit 1; }
"$build/bin/capstan" plugins install --to "$work/mine" build/lib/capstan/plugins/compressions/*.so >out.txt 2>&1 || fail install
grep -q 'compression log_scale' out.txt || fail "the kind and the type are not shown"
for _ in $(seq 200); do echo "the drum turns and hauls a rope steadily"; done >text.txt
train() { # name, stage, processes, JSON of capstan.compressions
  cat >"$1.json" <<JSON
{
  "train_batch_size": 4, "gradient_clipping": 1.0, "steps_per_print": null, "zero_optimization": {"stage": $2},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "csv_monitor": {"enabled": true, "job_name": "$1"},
  "capstan": {"plugins": {"path": ["$work/mine"]}, "compressions": $4,
    "model": {"type": "gpt", "params": {"seq": 32}}, "run": {"seed": 7, "steps": 5}, "data": {"path": ["text.txt"]}}
}
JSON
  OMP_NUM_THREADS=1 "$build/bin/capstan" launch -n "$3" train --config "$1.json" --save "$1" >out.txt 2>&1 || fail "$1"
}
losses() { cut -d, -f2 "$1/Train_Samples_train_loss.csv"; }
four='[{"type": "log_scale", "params": {"modules": ["attn", "mlp"], "levels": 4, "first_update": 2}}]'
train whole 0 1 "$four"
train parts 3 2 "$four"
grep -q 'log_scale: [1-9][0-9]* of [0-9]* modules, 4 levels' out.txt || fail "the report does not say what it acts on"
train plain 0 1 '[]'

python3 - <(losses whole) <(losses parts) <(losses plain) <<'PY' || { losses whole; losses parts; losses plain; exit 1; }
import sys
whole, parts, plain = ([float(x) for x in open(path).read().split()[1:]] for path in sys.argv[1:])
near = lambda a, b: all(abs(x - y) <= 1e-5 * abs(y) for x, y in zip(a, b))
assert len(whole) == len(parts) == 5, "five losses each"
assert near(whole, parts), "stage 3 on two processes against stage 0"
assert near(whole[:2], plain[:2]), "the same before the first update that rounds"
assert not near(whole[3:], plain[3:]), "another run afterwards"
PY

"$build/bin/capstan" export --checkpoint parts --compressed --to safetensors --out coded.safetensors --plugin-path mine >out.txt 2>&1 ||
  fail export
python3 - coded.safetensors <<'PY'
import json, math, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, data = json.loads(data[8:8 + length]), data[8 + length:]

def numbers(name, form):
    begin, end = header[name]["data_offsets"]
    return struct.unpack("<%d%s" % ((end - begin) // 4, form), data[begin:end])

packed = [name for name in header if name.endswith(".weight_packed")]
assert packed and all(".attn." in name or ".mlp." in name for name in packed), packed
for name in packed:
    # Codes of 5 bits, as unsigned numbers from -16: a row's stand one after the other, from the lowest bit of its words.
    rows, width = header[name]["shape"]
    words, columns = numbers(name, "I"), width * 32 // 5
    streams = [sum(word << 32 * k for k, word in enumerate(words[row * width:(row + 1) * width])) for row in range(rows)]
    codes = {(stream >> 5 * k & 31) - 16 for stream in streams for k in range(columns)}
    assert {0, 8, -8} <= codes <= {0, 1, -1, 2, -2, 4, -4, 8, -8}, (name, codes)
    scales = numbers(name.replace("packed", "scale"), "f")
    assert all(math.frexp(scale)[0] == 0.5 for scale in scales), (name, scales[:4])
PY
