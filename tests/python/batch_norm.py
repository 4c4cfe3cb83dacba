"""A batch norm whose ranks see different samples, saved and resumed. Tells the numbers of an evaluation on each rank:
of the run that saved, of the one that resumed, and of both two steps later."""

import os
import sys

import torch

import capstan
from support import config, tell

RANK = int(os.environ["RANK"])


class Net(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.last = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.norm(x)).square().mean()


def step(engine, k):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * k + RANK)) * (1 + RANK) + RANK
    engine.backward(engine(x))
    engine.step()


def evaluated(engine):
    """Of this rank alone."""
    engine.eval()
    with torch.no_grad(), engine.gather():
        loss = engine.module(torch.ones(4, 6) * (1 + RANK)).item()
    engine.train()
    return [loss, engine.module.norm.running_mean.tolist(), int(engine.module.norm.num_batches_tracked)]


told = {}
for stage in (0, 3):
    folder = f"{sys.argv[1]}-{stage}"
    engine, resumed = (capstan.initialize(model=Net(seed), config=config(stage))[0] for seed in (1, 2))
    for k in range(3):
        step(engine, k)
    engine.save_checkpoint(folder)
    resumed.load_checkpoint(folder)
    told[stage] = [evaluated(engine), evaluated(resumed)]
    for k in (3, 4):
        step(engine, k)
        step(resumed, k)
    told[stage] += [evaluated(engine), evaluated(resumed)]
tell(told)
