"""One rank of the training that rank_step times, with PyTorch: peer_step.py PEER MODEL STAGE STEPS ROWS LAYERS WIDTH

PEER: ddp, ddp_view (gradient_as_bucket_view), fsdp2, deepspeed (torch's fused AdamW), deepspeed_cpu_adam (DeepSpeed's own),
either of them with _overlap (overlap_comm). Rank 0 prints the median step in milliseconds. One thread each."""
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

PEER, MODEL, STAGE, STEPS, ROWS, LAYERS, WIDTH = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:8])
TOKENS, WARM_UP = 256, 3
torch.set_num_threads(1)
torch.manual_seed(7)


class Layers(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.pow(2).mean()


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, hidden):
        b, t, d = hidden.shape
        q, k, v = self.qkv(self.ln1(hidden)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        return hidden + self.out(functional.gelu(self.fc(self.ln2(hidden)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, d):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, d), nn.Embedding(TOKENS, d)
        self.blocks = nn.Sequential(*(Block(d, 8) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, 256, bias=False)

    def forward(self, tokens):
        hidden = self.blocks(self.tokens(tokens[:, :-1]) + self.positions.weight)
        return functional.cross_entropy(self.head(self.ln(hidden)).view(-1, 256), tokens[:, 1:].reshape(-1))


if MODEL == "gpt":
    model, batch = Gpt(LAYERS, WIDTH), torch.randint(256, (ROWS, TOKENS + 1))
elif MODEL == "small":
    model, batch = Layers(50, 16), torch.randn(ROWS, 16)
else:
    model, batch = Layers(LAYERS, WIDTH), torch.randn(ROWS, WIDTH)

if PEER in ("ddp", "ddp_view", "fsdp2"):
    torch.distributed.init_process_group("gloo")
    if PEER != "fsdp2":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=PEER == "ddp_view")
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in model.blocks if MODEL == "gpt" else model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import logging

    import deepspeed

    logging.disable(logging.WARNING)
    config = {"train_micro_batch_size_per_gpu": ROWS, "steps_per_print": 10**9, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": STAGE, "overlap_comm": PEER.endswith("_overlap")}}
    optimizer = None
    if PEER.startswith("deepspeed_cpu_adam"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-4)
    else:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=optimizer,
                                      dist_init_required=True, config=config)

    def step():
        engine.backward(engine(batch))
        engine.step()


times = []
for _ in range(WARM_UP + STEPS):
    begun = time.perf_counter()
    step()
    times.append(1000 * (time.perf_counter() - begun))
if int(os.environ.get("RANK", 0)) == 0:
    print(f"MEDIAN {statistics.median(times[WARM_UP:]):.3f}")
