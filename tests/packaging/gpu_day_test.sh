#!/usr/bin/env bash
# scripts/gpu-day with stand-ins for the programs that it runs: it compares losses, keeps going after a failure, and ends with
# 1 where one differs. The machine needs no GPU.
#
#   gpu_day_test.sh SOURCE_DIR
set -euo pipefail
readonly source=$1
. "$(dirname "$0")/common.sh"

mkdir -p "$work/bin" "$work/tests"
printf '#!/bin/sh\nexit 0\n' >"$work/tests/cuda_test"
cp "$work/tests/cuda_test" "$work/tests/cuda_onebit_test"
# Writes losses where the options say; those of "cuda" are $OFF away.
cat >"$work/bin/capstan" <<'P'
#!/usr/bin/env python3
import os, pathlib, sys
words = sys.argv[1:]
if words[0] == "train":
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    folder = pathlib.Path(settings["csv_monitor.output_path"], settings["csv_monitor.job_name"])
    folder.mkdir(parents=True, exist_ok=True)
    off = float(os.environ["OFF"]) if words[words.index("--device") + 1] == "cuda" else 0
    rows = ["step,loss"] + [f"{step},{5 + off}" for step in range(20)]
    (folder / "Train_Samples_train_loss.csv").write_text("\n".join(rows) + "\n")
P
chmod +x "$work/bin/capstan" "$work"/tests/*
day() { # OFF
  (cd "$source" && OFF=$1 BUILD=$work OUT=$work/out PATH="$work/nothing:$PATH" timeout 120 scripts/gpu-day correct) >"$work/log" 2>&1
}

day 0 || { cat "$work/log"; fail "equal losses are a failure"; }
[[ $(grep -c '^losses .* ok ' "$work/log") == $(grep -c '^losses' "$work/log") ]] || { cat "$work/log"; fail "a row is not ok"; }
for row in 'losses stage3' 'losses offload' 'losses lion' cuda_test check-adam; do
  grep -q "^$row " "$work/log" || { cat "$work/log"; fail "there is no row '$row'"; }
done
! day 0.1 || { cat "$work/log"; fail "losses that are 0.1 apart are no failure"; }
grep -q '^losses fp32 .*FAILED .*worst difference 0.1 of 0.002' "$work/log" || { cat "$work/log"; fail "the row does not say by how much"; }
[[ $(grep -c '^losses' "$work/log") -gt 10 ]] || { cat "$work/log"; fail "it has stopped after a failure"; }
! "$source/scripts/gpu-day" morning 2>/dev/null || fail "a phase that does not exist is no failure"
