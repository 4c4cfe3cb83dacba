"""Trains the shape of gpt:124m with PyTorch alone on one GPU, as a peer of `capstan train`; prints one line of JSON.

    torch_gpt.py --precision bf16|fp16 --micro-batch N --steps N [--vocab N] [--compile]

The peer has every option of Capstan's run: 16-bit products by autocast, float32 weights, one fused AdamW, flash
attention, clipping to a norm of 1, batches from pinned memory. --compile adds torch.compile, which Capstan lacks."""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, SEQUENCE = 12, 768, 12, 1024

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--precision", choices=("bf16", "fp16"), default="bf16")
arguments.add_argument("--micro-batch", type=int, default=8)
arguments.add_argument("--steps", type=int, default=40)
arguments.add_argument("--vocab", type=int, default=256)
arguments.add_argument("--compile", action="store_true")
given = arguments.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        batch, time_ = hidden.shape[:2]
        parts = self.qkv(self.ln1(hidden)).view(batch, time_, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.proj(mixed.transpose(1, 2).reshape(batch, time_, WIDTH))
        return hidden + self.out(functional.gelu(self.fc(self.ln2(hidden)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(given.vocab, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, given.vocab, bias=False)

    def forward(self, inputs, labels):
        hidden = self.tokens(inputs) + self.places.weight[: inputs.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1).float(), labels.flatten())


torch.manual_seed(1)
model = Gpt().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=given.precision == "fp16")
dtype = torch.bfloat16 if given.precision == "bf16" else torch.float16
step_model = torch.compile(model) if given.compile else model
seconds = []
for step in range(given.steps):
    batch = torch.randint(0, min(256, given.vocab), (given.micro_batch, SEQUENCE + 1)).pin_memory()
    begun = time.perf_counter()
    batch = batch.to("cuda", non_blocking=True)
    with torch.autocast("cuda", dtype=dtype):
        loss = step_model(batch[:, :-1], batch[:, 1:])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    seconds.append(time.perf_counter() - begun)
print(json.dumps({"tokens_per_s": given.micro_batch * SEQUENCE / statistics.median(seconds[len(seconds) // 2:]),
                  "loss": loss.item(), "peak_gib": torch.cuda.max_memory_allocated() / 2**30}))
