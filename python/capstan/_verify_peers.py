"""Loops of others that capstan.verify() compares with: they train the batches that Capstan's run has kept."""

import inspect
import json
import os

import torch

from capstan import _optimizers
from capstan._core import ConfigError
from capstan._distributed import init_distributed
from capstan._loader import loss_of
from capstan._module import call

_HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _reference(request, rank=0):
    """The facts of Capstan's run and its micro-batches on this rank, in order."""
    with open(os.path.join(request.reference, "run.json"), encoding="utf-8") as file:
        facts = json.load(file)
    return facts, torch.load(os.path.join(request.reference, f"batches-{rank}.pt"), weights_only=False)


def _own_optimizer(config, groups, parameters):
    """The optimizer of torch.optim that the configuration names, with Capstan's parameter groups."""
    section = config["optimizer"]
    kind, given = section["type"], dict(section["params"])
    if kind.lower() in ("adam", "adamw"):
        kind = "AdamW" if kind.lower() == "adamw" or given.get("adam_w_mode", True) else "Adam"
        given.setdefault("weight_decay", 0.01 if kind == "AdamW" and given.get("torch_adam") else 0.0)
    found = next((name for name in _optimizers._TRANSLATED if name.lower() == kind.lower()), None)
    if found is None:
        raise ConfigError(f"peer \"plain\": torch.optim has no optimizer '{kind}'.")
    make = getattr(torch.optim, found)
    takes = inspect.signature(make).parameters
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key in takes}
    made = []
    for group in groups:
        numbers = {key: values[0] if len(values) == 1 else tuple(values) for key, values in group["numbers"].items()}
        made.append({"params": [parameters[name] for name in group["parameters"]],
                     **{key: value for key, value in numbers.items() if key in options}})
    return make(made, **options)


def _autocast(config):
    section = config.get("torch_autocast", {})
    if not section.get("enabled"):
        return None
    return torch.autocast("cpu", dtype=_HALVES[section.get("dtype", "bfloat16")])


def plain(request, build_model, _data, _collate_fn):
    """PyTorch's own loop: forward, backward, clip_grad_norm_, step. Rates are those of Capstan's run."""
    from capstan._verify_run import Recorder

    facts, batches = _reference(request)
    config = facts["config"]
    for section in ("fp16", "bf16", "amp"):
        if config.get(section, {}).get("enabled"):
            raise ConfigError(f"peer \"plain\": the configuration trains with '{section}', and this loop computes in float32 or "
                              "by torch_autocast.")
    module = build_model()
    trained = {name: parameter for name, parameter in module.named_parameters() if name in facts["parameters"]}
    optimizer = _own_optimizer(config, facts["groups"], trained)
    autocast = _autocast(config)
    recorder = Recorder(request)
    recorder.begin(0, module, {name: value.detach().clone() for name, value in trained.items()})
    accumulation = config["gradient_accumulation_steps"]

    def loss_by(batch):
        if autocast is None:
            return loss_of(call(module, batch))
        with autocast:
            return loss_of(call(module, batch))

    for step, rates in enumerate(facts["rates"]):
        for batch in batches[step * accumulation:(step + 1) * accumulation]:
            (recorder.forward(batch, loss_by) / accumulation).backward()
        recorder.gradients(step, {name: value.grad for name, value in trained.items()})
        if config.get("gradient_clipping"):
            torch.nn.utils.clip_grad_norm_(list(trained.values()), config["gradient_clipping"])
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        recorder.end_step(rates)
    recorder.end({name: value.detach() for name, value in trained.items()})


def deepspeed(request, build_model, _data, _collate_fn):
    """DeepSpeed's engine by the same configuration, without the section "capstan"."""
    try:
        import deepspeed as peer
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
    except ImportError as error:
        raise ConfigError(f"peer \"deepspeed\": cannot be imported: {error}. Install it beside Capstan.") from error
    from capstan._verify_run import Recorder

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    facts, batches = _reference(request, rank)
    if len(facts["groups"]) > 1:
        raise ConfigError("peer \"deepspeed\": the configuration has capstan.parameter_groups, which DeepSpeed does not read.")
    config = {key: value for key, value in request.config.items() if key != "capstan"}
    config["gradient_clipping"] = facts["config"].get("gradient_clipping", 0.0)
    if config.get("optimizer", {}).get("type", "").lower() in ("adam", "adamw"):
        # DeepSpeed's own kernel of Adam wants a compiler; torch's decays where it is not told.
        given = config["optimizer"].get("params", {})
        config["optimizer"] = {**config["optimizer"], "params": {
            "weight_decay": 0.01 if given.get("torch_adam") else 0.0, **given, "torch_adam": True}}
    if world == 1:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=os.environ.get("MASTER_PORT", "0"))
    else:
        init_distributed()  # 'capstan launch' has opened the port already
    peer.init_distributed(dist_backend="gloo")
    module = build_model()
    engine, *_ = peer.initialize(model=module, config=config)
    trained = {name: parameter for name, parameter in module.named_parameters() if name in facts["parameters"]}

    def whole(get, own):
        found = {}
        for name, parameter in trained.items():
            value = get(parameter)
            found[name] = value if value is not None else own(parameter)
        return {name: value.detach().clone() for name, value in found.items() if value is not None}

    recorder = Recorder(request, rank, world)
    recorder.begin(0, module, whole(safe_get_full_fp32_param, lambda parameter: parameter))
    accumulation = engine.gradient_accumulation_steps()
    for step, rates in enumerate(facts["rates"]):
        for batch in batches[step * accumulation:(step + 1) * accumulation]:
            engine.backward(recorder.forward(batch, lambda batch: loss_of(call(engine, batch))))
            if engine.is_gradient_accumulation_boundary():
                recorder.gradients(step, whole(safe_get_full_grad, lambda parameter: parameter.grad))
            engine.step()
        recorder.end_step(rates)
    recorder.end(whole(safe_get_full_fp32_param, lambda parameter: parameter))
