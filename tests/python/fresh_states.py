"""What load_checkpoint() of DeepSpeed's signature takes of a checkpoint, by flag: fresh_states.py FOLDER."""

import sys

import torch

import capstan.deepspeed  # noqa: F401
import deepspeed
from support import config, tell, values_hash

ROWS = 8


class Net(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.head = torch.nn.Linear(6, 5), torch.nn.Linear(5, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x))).square().mean()


def engine_of(stage, seed, optimizer="AdamW", world=1):
    keys = config(stage=stage, train_micro_batch_size_per_gpu=ROWS // world,
                  scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}})
    keys["optimizer"]["type"] = optimizer
    return deepspeed.initialize(model=Net(seed), config=keys)[0]


def train(engine, first, count, rank, world):
    losses, rates = [], []
    for number in range(first, first + count):
        x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(number))
        loss = engine(x[rank * ROWS // world:(rank + 1) * ROWS // world])
        engine.backward(loss)
        rates.append(engine.get_lr()[0])
        engine.step()
        losses.append(loss.item())
    return losses, rates


WAYS = (("whole", "AdamW", {}), ("states anew", "AdamW", {"load_optimizer_states": False}),
        ("another optimizer", "Adam", {"load_optimizer_states": False}), ("schedule anew", "AdamW", {"load_lr_scheduler_states": False}),
        ("both anew", "AdamW", {"load_optimizer_states": False, "load_lr_scheduler_states": False}),
        ("module alone", "AdamW", {"load_module_only": True}),
        ("module alone, not strict", "AdamW", {"load_module_only": True, "load_module_strict": False}))


def facts_of(folder, stage, rank, world):
    saved = engine_of(stage, 1, world=world)
    train(saved, 0, 3, rank, world)
    saved.save_checkpoint(folder, "three", client_state={"epoch": 4})
    saved.destroy()
    facts = {}
    for name, optimizer, flags in WAYS:
        engine = engine_of(stage, 2, optimizer, world)
        _, client = engine.load_checkpoint(folder, "three", **flags)
        loaded, steps = values_hash(engine), engine.global_steps
        losses, rates = train(engine, 3, 3, rank, world)
        facts[name] = {"client": client, "loaded": loaded, "steps": steps, "losses": losses, "rates": rates, "end": values_hash(engine)}
        engine.destroy()
    return facts


if __name__ == "__main__":
    deepspeed.init_distributed()
    place = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    tell({stage: facts_of(f"{sys.argv[1]}-{stage}", stage, *place) for stage in (0, 3)})
