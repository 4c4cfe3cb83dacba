"""A checkpoint in a module that has another head: partial_load.py FOLDER."""

import os
import sys

import torch

import capstan.deepspeed  # noqa: F401
import capstan
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, set_z3_leaf_modules
from support import config, tell


class Body(torch.nn.Module):
    def __init__(self, head, width=4):
        super().__init__()
        self.body = torch.nn.Linear(4, width)
        self.add_module(head, torch.nn.Linear(width, 2))
        self.head_name = head
        if head == "new":
            self.register_buffer("seen", torch.full((2,), 7.0))

    def forward(self, x):
        return getattr(self, self.head_name)(torch.relu(self.body(x)))


def step(engine):
    engine.backward(engine(torch.ones(4, 4)).square().mean())
    engine.step()


def engine_of(stage, head, width=4, seed=1):
    torch.manual_seed(seed)
    return capstan.initialize(model=Body(head, width), config=config(stage=stage, gradient_clipping="1.0"))[0]


def facts_of(stage, folder):
    saved = engine_of(stage, "head")
    step(saved)
    saved.save_checkpoint(folder, "one")
    body = safe_get_full_fp32_param(saved.module.body.weight)
    moment = safe_get_full_optimizer_state(saved.module.body.weight, "exp_avg")
    saved.destroy()

    engine = engine_of(stage, "new", seed=2)
    new = safe_get_full_fp32_param(engine.module.new.weight)
    facts = {}
    try:
        engine.load_checkpoint(folder)
    except capstan.RuntimeFault as fault:
        facts["strict"] = str(fault)
    engine.load_checkpoint(folder, load_module_strict=False)
    facts["body"] = torch.equal(safe_get_full_fp32_param(engine.module.body.weight), body)
    facts["state of body"] = torch.equal(safe_get_full_optimizer_state(engine.module.body.weight, "exp_avg"), moment)
    facts["new"] = torch.equal(safe_get_full_fp32_param(engine.module.new.weight), new)
    facts["state of new"] = not safe_get_full_optimizer_state(engine.module.new.weight, "exp_avg").any()
    facts["buffer"] = engine.module.seen.tolist() == [7.0, 7.0]
    step(engine)
    facts["trains"] = engine.global_steps == 2 and not torch.equal(safe_get_full_fp32_param(engine.module.new.weight), new)
    engine.destroy()

    wide = engine_of(stage, "new", width=8)
    try:
        wide.load_checkpoint(folder, load_module_strict=False)
    except capstan.RuntimeFault as fault:
        facts["shape"] = str(fault)
    wide.destroy()
    return facts


if __name__ == "__main__":
    set_z3_leaf_modules(Body("head"), [torch.nn.Linear])
    tell({str(stage): facts_of(stage, os.path.join(sys.argv[1], str(stage))) for stage in (0, 3)})
