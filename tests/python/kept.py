"""What engines keep of parameters, by the functions of deepspeed.utils: kept.py STAGE.. . Each rank trains rows of its own."""

import hashlib
import sys

import torch

import capstan.deepspeed  # noqa: F401
import capstan
from deepspeed.utils import (safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state, safe_get_local_fp32_param,
                             safe_get_local_grad, safe_get_local_optimizer_state, safe_set_full_fp32_param, safe_set_full_grad,
                             safe_set_full_optimizer_state, safe_set_local_fp32_param, safe_set_local_grad,
                             safe_set_local_optimizer_state)
from deepspeed.utils.tensor_fragment import safe_get_full_grad as the_same_function
from small_engine import Net
from support import config, tell


def digest(tensors):
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(tensor.contiguous().view(-1).numpy().tobytes())
    return made.hexdigest()


def micro_batch(engine, step):
    x = torch.arange(16.0).view(4, 4).add(step + 3 * engine.global_rank).sin()
    loss = engine(x.to(engine.module.inner.weight.dtype)).float().square().mean()
    engine.backward(loss)


def said(function, *arguments):
    try:
        return str(function(*arguments))
    except (capstan.RuntimeFault, ValueError) as fault:
        return str(fault)


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(4, 4)
        self.base.requires_grad_(False)

    def forward(self, x):
        return super().forward(self.base(x))


def seen(stage, **keys):
    """What the getters show in two steps, and that setters act."""
    torch.manual_seed(3)
    net = Frozen()
    weight = net.inner.weight
    engine = capstan.initialize(model=net, config=config(stage=stage, gradient_accumulation_steps=2, **keys))[0]
    trained = [p for p in net.parameters() if p.requires_grad]
    facts = {"before": said(safe_get_full_grad, weight)}
    micro_batch(engine, 0)
    facts["within"] = said(safe_get_full_grad, weight)
    engine.step()
    micro_batch(engine, 1)
    gradients = [safe_get_full_grad(p) for p in trained]
    facts["gradients"] = digest(gradients)
    facts["shapes"] = [list(g.shape) for g in gradients]
    part = safe_get_local_grad(weight)
    facts["parts"] = part.numel()
    # Twice the gradients and half of them again are the gradients.
    for p, gradient in zip(trained, gradients):
        safe_set_full_grad(p, gradient * 2)
    facts["doubled"] = all(torch.equal(safe_get_full_grad(p), g * 2) for p, g in zip(trained, gradients))
    for p, gradient in zip(trained, gradients):
        safe_set_local_grad(p, safe_get_local_grad(p) / 2)
    engine.step()
    facts["norm"] = engine.get_global_grad_norm()
    facts["by hand"] = torch.cat([g.flatten() for g in gradients]).norm().item()
    facts["frozen"] = [safe_get_full_grad(net.base.weight) is None, safe_get_full_fp32_param(net.base.weight) is None,
                       safe_get_full_optimizer_state(net.base.weight, "exp_avg") is None]
    states = [safe_get_full_optimizer_state(p, key) for p in trained for key in ("exp_avg", "exp_avg_sq")]
    facts["states"] = digest(states)
    facts["expected"] = torch.allclose(states[0], 0.1 * min(1, 1 / facts["norm"]) * gradients[0], atol=1e-7)
    facts["step"] = int(safe_get_full_optimizer_state(weight, "step"))
    facts["masters"] = digest(safe_get_full_fp32_param(p) for p in trained)
    facts["lacks"] = said(safe_get_full_optimizer_state, weight, "momentum_buffer")
    facts["others"] = said(safe_set_full_fp32_param, net.base.weight, torch.zeros(4, 4))
    facts["sizes"] = said(safe_set_full_fp32_param, weight, torch.zeros(3))

    master = safe_get_full_fp32_param(weight) + 1 / 1024
    safe_set_full_fp32_param(weight, master)
    safe_set_full_optimizer_state(weight, torch.full((4, 4), 0.25), "exp_avg")
    facts["set"] = torch.equal(safe_get_full_fp32_param(weight), master) and bool(
        (safe_get_full_optimizer_state(weight, "exp_avg") == 0.25).all())
    with engine.gather():
        facts["module"] = torch.equal(weight.detach().float(), master.to(weight.dtype).float())
    safe_set_local_fp32_param(weight, safe_get_local_fp32_param(weight) + 1 / 1024)
    safe_set_local_optimizer_state(weight, safe_get_local_optimizer_state(weight, "exp_avg") * 2, "exp_avg")
    facts["set in parts"] = torch.equal(safe_get_full_fp32_param(weight), master + 1 / 1024) and bool(
        (safe_get_full_optimizer_state(weight, "exp_avg") == 0.5).all())
    hook = net.register_forward_hook(
        lambda *_: facts.update(inside=said(safe_set_full_fp32_param, weight, torch.zeros(4, 4))))
    for step in (2, 3):
        micro_batch(engine, step)
        hook.remove()
        engine.step()
    facts["after"] = digest(safe_get_full_fp32_param(p) for p in trained)
    engine.destroy()
    return facts


def of_own_optimizer():
    """States of an optimizer that runs as the program brought it."""
    torch.manual_seed(3)

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.state[p]["seen"] = p.grad.clone()
                        p.sub_(group["lr"] * p.grad)

    net = Net()
    keys = config()
    del keys["optimizer"]
    engine = capstan.initialize(model=net, config=keys, optimizer=Own(net.parameters()))[0]
    none = said(safe_get_full_optimizer_state, net.inner.weight, "seen")
    micro_batch(engine, 0)
    gradient = safe_get_full_grad(net.inner.weight)
    engine.step()
    scale = min(1, 1 / engine.get_global_grad_norm()) if engine.get_global_grad_norm() else 1
    same = torch.allclose(safe_get_full_optimizer_state(net.inner.weight, "seen"), gradient * scale, rtol=1e-4)
    engine.destroy()
    return [none, same]


if __name__ == "__main__":
    assert the_same_function is safe_get_full_grad
    found = {stage: seen(int(stage)) for stage in sys.argv[1:]}
    found["bf16"] = {stage: seen(int(stage), bf16={"enabled": True}) for stage in sys.argv[1:] if stage in "03"}
    if len(sys.argv) == 2:
        found["own"] = of_own_optimizer()
        found["fp16"] = seen(0, fp16={"enabled": True, "loss_scale": 128})
    tell(found)
