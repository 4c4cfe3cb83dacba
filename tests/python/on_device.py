"""Trains a small module in this process on the device that the first argument names, at the ZeRO stage of the second."""

import os
import sys

import torch

import capstan
from support import config, tell

DEVICE, STAGE = sys.argv[1], int(sys.argv[2])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = torch.nn.Linear(6, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.head(torch.tanh(self.body(x))), y)


folders = [sys.argv[3]] if DEVICE != "cpu" else []
engine = capstan.initialize(model=Net(), config=config(STAGE, capstan={"run": {"device": DEVICE}, "plugins": {"path": folders}}))[0]
samples = torch.Generator().manual_seed(7 + int(os.environ.get("RANK", "0")))
losses = []
for _ in range(5):
    x, y = torch.randn(4, 6, generator=samples), torch.randn(4, 2, generator=samples)
    loss = engine(x.to(engine.device), y.to(engine.device))
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
tell({"device": str(engine.device), "losses": losses})
