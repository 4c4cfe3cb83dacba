"""Trains a GPT-2 of 25 million parameters with one of two engines; prints what it took, as one line of JSON.

    train_gpt2.py capstan|deepspeed STAGE STEPS
"""

import json
import os
import resource
import sys
import time

started = float(os.environ["BENCH_STARTED"])  # when the parent started this process, of time.time()
kind, stage, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

if kind == "capstan":
    import capstan as deepspeed  # noqa: E402
else:
    import deepspeed  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
torch.manual_seed(1)
config = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True}},
    "zero_optimization": {"stage": stage}, "steps_per_print": 1000000,
}
if kind == "deepspeed":
    deepspeed.init_distributed(dist_backend="gloo")
net = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=128, n_embd=512, n_layer=6, n_head=8, resid_pdrop=0, embd_pdrop=0,
                                 attn_pdrop=0, bos_token_id=0, eos_token_id=0))
engine = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config)[0]
generator = torch.Generator().manual_seed(7)
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
losses, times = [], []
first = None
for step in range(steps):
    ids = torch.randint(0, 8192, (2 * size, 128), generator=generator).chunk(size)[rank]
    begun = time.process_time(), time.time()
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
    times.append((time.process_time() - begun[0], time.time() - begun[1]))
    first = first or time.time() - started
    if step == 0:
        first_cpu = time.process_time()
peak = next(int(line.split()[1]) for line in open("/proc/self/status", encoding="ascii") if line.startswith("VmHWM")) / 1024
times = sorted(times[2:])
print("RESULT " + json.dumps({
    "parameters": sum(p.numel() for p in net.parameters()) if stage < 3 else None, "losses": losses, "start": first,
    "start_cpu": first_cpu, "step_cpu": times[len(times) // 2][0], "step": sorted(t[1] for t in times)[len(times) // 2],
    "peak_mb": peak, "faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt}), flush=True)
os._exit(0)
