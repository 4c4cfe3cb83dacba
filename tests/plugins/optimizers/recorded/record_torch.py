"""Records what torch's own optimizer classes do, in double precision, for torch_classes_test.

    pip install torch==2.11.0 && python record_torch.py > torch_classes.json

Problem: 37 parameters, or as many as the case's shape has; before update t (from 0) each gradient is
noise(100 + t) + 0.5 * p; after 25 updates lr is halved. Muon computes in bfloat16 whatever its parameters are; cases
with "precise" have its conversions replaced by ones to double precision. The gradients of cases with "sparse" have, before
update t, the rows r for which r + t is a multiple of 3.
"""
import contextlib
import json
import math
from unittest import mock

import torch

UPDATES = 50
FP32_EPS = [torch.finfo(torch.float32).eps, 1e-3]  # what Adafactor takes by itself for parameters in float32


def noise(seed, shape):
    mask = (1 << 64) - 1
    state = (seed * 0x9E3779B97F4A7C15 + 1) & mask
    values = []
    for _ in range(math.prod(shape)):
        state = (state * 6364136223846793005 + 1442695040888963407) & mask
        values.append((state >> 33) / 2**30 - 1.0)
    return torch.tensor(values, dtype=torch.float32).double().reshape(shape)


# plugin, type, parameters; shape, remarks
CASES = [
    ("sgd", "SGD", {"lr": 0.05, "weight_decay": 0.1}),
    ("sgd", "SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("sgd", "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("adagrad", "Adagrad", {"lr": 0.05, "lr_decay": 0.02, "initial_accumulator_value": 0.3, "weight_decay": 0.1}),
    ("rmsprop", "RMSprop", {"lr": 0.01, "alpha": 0.95, "weight_decay": 0.1}),
    ("rmsprop", "RMSprop", {"lr": 0.01, "alpha": 0.95, "momentum": 0.8}),
    ("rmsprop", "RMSprop", {"lr": 0.01, "alpha": 0.95, "centered": True, "eps": 1e-3}),
    ("rmsprop", "RMSprop", {"lr": 0.01, "alpha": 0.95, "centered": True, "momentum": 0.8, "eps": 1e-3}),
    ("nadam", "NAdam", {"lr": 0.01, "betas": [0.8, 0.99], "weight_decay": 0.1, "momentum_decay": 0.01}),
    ("nadam", "NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("radam", "RAdam", {"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1}),
    ("radam", "RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("adamax", "Adamax", {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.1}),
    ("adadelta", "Adadelta", {"lr": 1.0, "rho": 0.8, "weight_decay": 0.1}),
    ("asgd", "ASGD", {"lr": 0.05, "lambd": 0.01, "alpha": 0.6, "t0": 10, "weight_decay": 0.1}),
    ("rprop", "Rprop", {"lr": 0.01, "etas": [0.4, 1.3], "step_sizes": [1e-4, 0.1]}),
    ("adam", "AdamW", {"lr": 0.01, "betas": [0.8, 0.99], "weight_decay": 0.1, "amsgrad": True}),
    ("adam", "Adam", {"lr": 0.01, "betas": [0.8, 0.99], "weight_decay": 0.1, "amsgrad": True}),
    ("adam", "AdamW", {"lr": 0.01}),
    ("muon", "Muon", {"lr": 0.02}, [9, 4], {"precise": True}),
    ("muon", "Muon", {"lr": 0.02, "momentum": 0.8, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, [5, 11],
     {"precise": True}),
    ("muon", "Muon", {"lr": 0.02, "ns_coefficients": [2.0, -1.5, 0.5], "ns_steps": 7, "eps": 1e-3}, [8, 21],
     {"precise": True}),
    ("muon", "Muon", {"lr": 0.02}, [9, 4]),
    ("adafactor", "Adafactor", {"lr": 0.05, "eps": FP32_EPS}),
    ("adafactor", "Adafactor", {"lr": 0.05, "weight_decay": 0.1, "beta2_decay": -0.6, "d": 1.5, "eps": FP32_EPS}, [9, 4]),
    ("adafactor", "Adafactor", {"eps": [1e-4, 0.02], "maximize": True}, [3, 5, 7]),
    ("sparse_adam", "SparseAdam", {"lr": 0.01}, [11, 4], {"sparse": True}),
    ("sparse_adam", "SparseAdam", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-4, "maximize": True}, [11, 4],
     {"sparse": True}),
]


def rows_of(gradient, update):
    """A sparse tensor of some rows."""
    rows = [row for row in range(len(gradient)) if (row + update) % 3 == 0]
    return torch.sparse_coo_tensor([rows], gradient[rows], gradient.shape)


def record(plugin, kind, params, shape=(37,), remarks={}):
    parameter = torch.nn.Parameter(noise(1, shape))
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}
    if kind not in ("Muon", "SparseAdam"):
        arguments["foreach"] = False
    optimizer = getattr(torch.optim, kind)([parameter], **arguments)
    case = {"plugin": plugin, "type": kind, "params": params, **remarks}
    if len(shape) > 1:
        case["shape"] = shape
    precise = mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor.double().clone())  # a copy, as there
    for update in range(UPDATES):
        if update == 25:
            optimizer.param_groups[0]["lr"] /= 2
        parameter.grad = (noise(100 + update, shape) + 0.5 * parameter).detach()
        if remarks.get("sparse"):
            parameter.grad = rows_of(parameter.grad, update)
        with precise if remarks.get("precise") else contextlib.nullcontext():
            optimizer.step()
        if update + 1 in (1, 10, UPDATES):
            case[f"after {update + 1}"] = parameter.detach().flatten().tolist()
    if kind == "ASGD":
        case["ax"] = optimizer.state[parameter]["ax"].tolist()
    return case


def main():
    lines = [json.dumps(record(*case)) for case in CASES]
    print('{"torch": "%s",\n "cases": [\n%s\n]}' % (torch.__version__.split("+")[0], ",\n".join(lines)))


main()
