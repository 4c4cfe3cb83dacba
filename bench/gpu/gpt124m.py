"""Trains gpt:124m on one GPU in fp16 and bf16: tokens/s, model FLOP utilisation, peak memory beside its formula, and
PyTorch's own figures for the same shape (torch_gpt.py).

    bench/gpu/gpt124m.py BUILD_DIR [--steps 40] [--micro-batch 8] [--vocab 256] [--peak-tflops N] [--bound 0.9] [--compiled]

A step of N parameters on T tokens takes 6 N T FLOPs, and attention 12 L d T more a token of a sequence of T (Chowdhery et
al. 2022, appendix B); utilisation is that over the device's dense 16-bit peak. Memory that lasts is what `capstan plan`
says (weights, gradients, masters, moments); what the peak has beyond it is what forward keeps for backward. Exits with 1
where Capstan trains fewer tokens/s than the bound times those of PyTorch without torch.compile."""
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
arguments.add_argument("--vocab", type=int, default=256)
arguments.add_argument("--peak-tflops", type=float)
arguments.add_argument("--bound", type=float, default=0.9)
arguments.add_argument("--compiled", action="store_true", help="torch.compile as a second peer, which takes minutes")
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


def peer(precision, *more):
    words = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_gpt.py"), "--precision",
             precision, "--micro-batch", str(given.micro_batch), "--steps", str(given.steps), "--vocab", str(given.vocab)]
    done = subprocess.run([*words, *more], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else sys.exit(done.stderr)


met = True
with tempfile.TemporaryDirectory() as folder:
    data, config = os.path.join(folder, "text.txt"), os.path.join(folder, "config.json")
    with open(data, "wb") as out:
        out.write(random.Random(1).randbytes(4 << 20))
    with open(config, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": given.micro_batch, "steps_per_print": 1,
                   "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                   "capstan": {"model": {"type": "gpt", "params": {"size": "124m", "vocab": given.vocab}}, "run": {"device": "cuda", "steps": given.steps}}}, out)
    for precision in ("fp16", "bf16"):
        common = ["--config", config, "--set", precision + ".enabled=true"]
        plan = json.loads(run(["plan", *common, "--json"]).stdout)
        done = run(["train", *common, "--data", data])
        name = re.search(r'training on \S+: \{"name": "([^"]*)"', done.stderr).group(1)
        rates = [SEQUENCE * float(rate) for rate in re.findall(r"CurrSamplesPerSec=([\d.]+)", done.stdout)]
        rate = statistics.median(rates[len(rates) // 2:])  # the first steps choose kernels and fill the allocator
        flops = 6 * plan["parameters"] + 12 * LAYERS * WIDTH * SEQUENCE
        peak = max(float(gib) for gib in re.findall(r"MaxMemAllocated=([\d.]+)GB", done.stdout)) * 2**30
        lasting = plan["configured"]["memory"]
        losses = [float(loss) for loss in re.findall(r"loss=([\d.]+)", done.stdout)]
        print(f"{name}, {precision}, micro-batch {given.micro_batch} x {SEQUENCE}: {rate:,.0f} tokens/s, "
              f"{100 * rate * flops / (peak_tflops(name) * 1e12):.1f} % model FLOP utilisation; loss "
              f"{losses[0]:.3f} -> {losses[-1]:.3f}; peak {peak / 2**30:.2f} GiB, of which {lasting / 2**30:.2f} "
              f"by the formula last ({lasting / plan['parameters']:.1f} bytes a parameter)", flush=True)
        for more in ([], ["--compile"]) if given.compiled else ([],):
            other = peer(precision, *more)
            met = met and (bool(more) or rate >= given.bound * other["tokens_per_s"])
            print(f"PyTorch{' with torch.compile' if more else ''}, {precision}: {other['tokens_per_s']:,.0f} tokens/s, peak "
                  f"{other['peak_gib']:.2f} GiB; Capstan trains {rate / other['tokens_per_s']:.2f} of its tokens/s", flush=True)
sys.exit(0 if met else f"Capstan trains fewer than {given.bound} of the tokens/s of PyTorch.")
