"""A program that trains by capstan.Run: run_program.py HOW CONFIG."""

import sys

import torch
from torch import nn

import capstan


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True).sin())


def main(how, config):
    if how == "beside torch.distributed":
        capstan.init_distributed()
    if how == "own engine":
        capstan.initialize(model=Net(), config=config)
    run = capstan.Run(Net, config, DATA, eval_data=DATA)
    if how != "loop":
        return run.train()
    for batch in run:
        run.engine.backward(run.engine(*batch))
        run.engine.step()
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
