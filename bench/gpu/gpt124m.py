"""Trains gpt:124m on one GPU in fp16 and bf16: tokens/s, model FLOP utilisation, peak memory beside its formula.

    bench/gpu/gpt124m.py BUILD_DIR [--steps 40] [--micro-batch 8] [--peak-tflops N]

A step of N parameters on T tokens takes 6 N T FLOPs, and attention 12 L d T more a token of a sequence of T (Chowdhery et
al. 2022, appendix B); utilisation is that over the device's dense 16-bit peak. Memory that lasts is what `capstan plan`
says (weights, gradients, masters, moments); what the peak has beyond it is what forward keeps for backward."""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

LAYERS, WIDTH, SEQUENCE = 12, 768, 1024
# Dense 16-bit TFLOP/s, from NVIDIA's data sheets.
PEAKS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "4090": 165, "A10": 125}

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("build")
arguments.add_argument("--steps", type=int, default=40)
arguments.add_argument("--micro-batch", type=int, default=8)
arguments.add_argument("--peak-tflops", type=float)
given = arguments.parse_args()
capstan = os.path.join(given.build, "bin", "capstan")


def run(words):
    done = subprocess.run([capstan, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done


def peak_tflops(name):
    if given.peak_tflops:
        return given.peak_tflops
    known = [tflops for part, tflops in PEAKS.items() if part in name]
    return known[0] if known else sys.exit(f"the peak of a {name} is not known here: give --peak-tflops.")


with tempfile.TemporaryDirectory() as folder:
    data, config = os.path.join(folder, "text.txt"), os.path.join(folder, "config.json")
    with open(data, "wb") as out:
        out.write(random.Random(1).randbytes(4 << 20))
    with open(config, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": given.micro_batch, "steps_per_print": 1, "memory_breakdown": True,
                   "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                   "capstan": {"model": "gpt:124m", "run": {"device": "cuda", "steps": given.steps}}}, out)
    for precision in ("fp16", "bf16"):
        common = ["--config", config, "--set", precision + ".enabled=true"]
        plan = json.loads(run(["plan", *common, "--json"]).stdout)
        done = run(["train", *common, "--data", data])
        name = re.search(r'training on \S+: \{"name": "([^"]*)"', done.stderr).group(1)
        rates = [float(rate) for rate in re.findall(r"tokens/s=([\d.]+)", done.stdout)]
        rate = statistics.median(rates[len(rates) // 2:])  # the first steps choose kernels and fill the allocator
        flops = 6 * plan["parameters"] + 12 * LAYERS * WIDTH * SEQUENCE
        peak = max(float(gib) for gib in re.findall(r"Max_MA ([\d.]+) GB", done.stdout)) * 2**30
        lasting = plan["configured"]["memory"]
        losses = [float(loss) for loss in re.findall(r"loss=([\d.]+)", done.stdout)]
        print(f"{name}, {precision}, micro-batch {given.micro_batch} x {SEQUENCE}: {rate:,.0f} tokens/s, "
              f"{100 * rate * flops / (peak_tflops(name) * 1e12):.1f} % model FLOP utilisation; loss "
              f"{losses[0]:.3f} -> {losses[-1]:.3f}; peak {peak / 2**30:.2f} GiB, of which {lasting / 2**30:.2f} "
              f"by the formula last ({lasting / plan['parameters']:.1f} bytes a parameter)", flush=True)
