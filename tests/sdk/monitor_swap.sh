#!/usr/bin/env bash
# monitor_swap.sh BUILD TORCH SOURCE: builds the third-party monitor against nothing but the installed SDK, and trains twice with
# configurations that differ in the monitor alone: what csv_monitor wrote last is what the other one shows.
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
if readelf -d "$work"/build/lib/capstan/plugins/monitors/*.so | grep -q torch; then
  echo "the monitor needs LibTorch"
  exit 1
fi

cd "$work"
for _ in $(seq 200); do echo "the drum turns and hauls a rope steadily"; done >text.txt
config() {
  cat <<JSON
{
  "train_batch_size": 4, "gradient_clipping": 1.0, "steps_per_print": null,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  $1
  "capstan": {$2 "model": {"type": "mlp", "params": {}}, "run": {"seed": 7, "steps": 5}, "data": {"path": ["text.txt"]}}
}
JSON
}
config '"csv_monitor": {"enabled": true, "job_name": "csv"},' '' >csv.json
config '' '"plugins": {"path": ["build/lib/capstan/plugins/monitors"]},
  "monitors": [{"type": "prometheus_textfile", "params": {"file": "capstan.prom", "job": "haul"}}],' >prometheus.json
"$build/bin/capstan" train --config csv.json >out.txt 2>&1 || { cat out.txt; exit 1; }
"$build/bin/capstan" train --config prometheus.json >out.txt 2>&1 || { cat out.txt; exit 1; }

same() { # tag of the CSV file, name of the metric
  local csv prom
  csv=$(tail -1 "csv/Train_Samples_$1.csv" | tr -d '\r' | cut -d, -f2)
  prom=$(sed -n "s/^$2{job=\"haul\"} //p" capstan.prom)
  python3 -c 'import sys; sys.exit(float(sys.argv[1]) != float(sys.argv[2]))' "$csv" "$prom" ||
    { echo "$1: '$csv' in the CSV file, '$prom' for Prometheus"; exit 1; }
}
same train_loss capstan_train_samples_train_loss
same lr capstan_train_samples_lr
same grad_norm capstan_train_samples_grad_norm
grep -q '^capstan_samples{job="haul"} 20$' capstan.prom || { cat capstan.prom; exit 1; }
