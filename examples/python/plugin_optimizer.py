"""Trains with an optimizer that is a plugin of one's own: examples/plugins/signum, or any other folder of plugins.

    cmake -S ../plugins/signum -B signum -DCMAKE_PREFIX_PATH=$(python -c 'import capstan, os; print(os.path.dirname(capstan.__file__))')
    cmake --build signum
    python plugin_optimizer.py signum/lib/capstan/plugins/optimizers
"""

import sys

import torch

import capstan

config = {
    "train_micro_batch_size_per_gpu": 16,
    "optimizer": {"type": "Signum", "params": {"lr": 1e-3}},
    "capstan": {"plugins": {"path": sys.argv[1]}},
}
torch.manual_seed(1)
engine, optimizer, _, _ = capstan.initialize(model=torch.nn.Linear(8, 1), config=config)
for step in range(50):
    x = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
print(f"{type(optimizer).__name__} of Signum, loss {loss.item():.4f}")
