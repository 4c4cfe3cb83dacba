"""An engine of a network of two layers, and a step of it."""

import torch

import capstan
from support import config


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.outer = torch.nn.Linear(4, 1)

    def forward(self, x, fail=None):
        if fail is not None:
            raise fail
        return self.outer(torch.relu(self.inner(x)))


def engine_of(net=None, optimizer=None, lr_scheduler=None, **keys):
    torch.manual_seed(3)
    keys = config(**keys)
    if optimizer is not None:
        del keys["optimizer"]
    return capstan.initialize(model=net if net is not None else Net(), config=keys, optimizer=optimizer,
                              lr_scheduler=lr_scheduler)[0]


def step(engine, x=None):
    loss = engine(torch.ones(4, 4) if x is None else x).square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()
