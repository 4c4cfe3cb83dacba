"""For each model named: ten steps of plain PyTorch on whole batches, and of an engine at each ZeRO stage, this process
taking its part of each batch. Tells losses and hashes of parameters.

    train_models.py STEPS STAGES MODEL...        # STAGES: "0,1,2,3"
"""

import os
import sys

import torch

import capstan
from models import MODELS, batches, part
from support import config, tell, values_hash

steps, stages = int(sys.argv[1]), [int(stage) for stage in sys.argv[2].split(",")]
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
told = {}
for name in sys.argv[3:]:
    build, make, loss_of = MODELS[name]
    data = batches(make, steps, 4 * size)
    torch.manual_seed(1)
    plain = build()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    told[name] = {"plain": []}
    for batch in data:
        loss = loss_of(plain, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told[name]["plain"].append(loss.item())
    for stage in stages:
        torch.manual_seed(1)
        with capstan.zero.Init(enabled=stage == 3):
            net = build()
        engine, _, _, _ = capstan.initialize(model=net, config=config(stage))
        losses = []
        for batch in data:
            loss = loss_of(engine, part(batch, rank, size))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        told[name][str(stage)] = {"losses": losses, "hash": values_hash(engine)}
        engine.destroy()
tell(told)
