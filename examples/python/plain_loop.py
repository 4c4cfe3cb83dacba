"""Trains a small network on numbers, by a loop of one's own.

    python plain_loop.py                                   # or: capstan launch -n 2 $(which python) plain_loop.py
"""

import torch

import capstan

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 5}},
    "zero_optimization": {"stage": 2},
}


class Sines(torch.utils.data.Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        x = torch.rand(1, generator=torch.Generator().manual_seed(index)) * 6
        return x, torch.sin(x)


torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
engine, _, loader, _ = capstan.initialize(model=net, config=CONFIG, training_data=Sines())
for epoch in range(3):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
    if engine.global_rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, rate {engine.get_lr()[0]:.4g}")
engine.save_checkpoint("sines")
