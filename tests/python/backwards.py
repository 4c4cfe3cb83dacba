"""At each ZeRO stage, in several processes: the values after steps by engine.backward(loss), and by loss.backward()."""

import os

import torch

import capstan
from small_engine import Net
from support import config, tell, values_hash

rank = int(os.environ["RANK"])
x = torch.linspace(-1, 1, 32).reshape(2, 4, 4)[rank]


def trained(stage, plainly):
    torch.manual_seed(3)
    engine = capstan.initialize(model=Net(), config=config(stage))[0]
    for _ in range(3):
        loss = engine(x).square().mean()
        loss.backward() if plainly else engine.backward(loss)
        engine.step()
    values = values_hash(engine)
    engine.destroy()
    return values


tell({stage: [trained(stage, False), trained(stage, True)] for stage in range(4)})
