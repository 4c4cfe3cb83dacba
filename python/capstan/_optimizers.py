"""What an optimizer of torch.optim, or groups of parameters, are to the engine: key paths of a configuration, or a refusal."""

from typing import Any

import torch

from capstan._core import ConfigError

# These choose an implementation of the same update.
_IMPLEMENTATIONS = ("foreach", "capturable", "fused")
_TRANSLATED = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
               "SGD", "SparseAdam")
# Options that are no numbers of the plugin of the same name, and the value with which it trains.
_FIXED = {"maximize": False, "differentiable": False}
_WITHOUT = {"maximize": "Take the loss with a minus sign.",
            "differentiable": "Updates here are outside of autograd: leave it False."}


def is_translated(optimizer: Any) -> bool:
    """Whether an optimizer becomes the plugin of its name. Any other is run as it is."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and kind.__name__ in _TRANSLATED


def numbers_of(value: Any) -> list | None:
    """The numbers of an option, a list of floats; None: it has none."""
    items = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for item in items:
        if item is None and len(items) > 1:  # Adafactor's eps: that of the parameter's type, float32 here
            item = torch.finfo(torch.float32).eps
        if hasattr(item, "item"):
            item = item.item()
        if not isinstance(item, (int, float)):  # bool is an int
            return None
        found.append(float(item))
    return found


def _plain(key: str, value: Any) -> Any:
    """An option as a configuration holds it; None: left out."""
    numbers = numbers_of(value)
    if isinstance(value, bool) or numbers is None:
        return value
    if key == "lr" and numbers[0] == 0:  # a warm-up's first rate, which the engine is told once it is made
        return None
    return numbers if isinstance(value, (list, tuple)) else value.item() if hasattr(value, "item") else value


def _pattern(name: str) -> str:
    return "^" + "".join("\\" + c if c in ".^$*+?()[]{}|\\" else c for c in name) + "$"


def parameters_of(given: Any) -> list:
    """Parameter groups, from parameters, (name, parameter) pairs or groups of either."""
    groups = list(given or [])
    if not groups:
        return []
    if not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    return [{**group, "params": [one[1] if isinstance(one, tuple) else one for one in (
        [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"])]} for group in groups]


def left_out(what: str, groups: list, parameters: list) -> list:
    """Names of trainable parameters that the groups do not have: these are not trained. Raises ConfigError for tensors that
    are not the model's. `what`: the argument that has the groups."""
    if not groups:
        return []
    known = {id(parameter) for _, parameter in parameters}
    for place, group in enumerate(groups):
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ConfigError(
                    f"{what}: parameter group {place} has a tensor of shape {list(parameter.shape)} that is not a parameter of "
                    "the model, and the engine would not train it. Make the optimizer of the model's own parameters, or the "
                    "tensor a parameter of the model.")
    used = {id(parameter) for group in groups for parameter in group["params"]}
    return [name for name, parameter in parameters if parameter.requires_grad and id(parameter) not in used]


def _rules(groups: list, names: dict, values_of: Any, common: dict) -> list:
    """Parameter groups as rules of capstan.parameter_groups, one for each that has trainable parameters."""
    rules = []
    for group in groups:
        trainable = [parameter for parameter in group["params"] if id(parameter) in names and parameter.requires_grad]
        own = {key: value for key, value in values_of(group).items() if common.get(key) != value}
        if trainable and (len(groups) > 1 or own):
            rules.append({"match": [_pattern(names[id(parameter)]) for parameter in trainable], "params": own})
    return rules


def rules_of(groups: list, names: dict) -> list:
    """For the configuration's optimizer: the numbers that a program's groups give."""
    def values_of(group):
        plain = {key: _plain(key, value) for key, value in group.items() if key not in ("params", "param_names", "initial_lr")}
        return {key: value for key, value in plain.items() if value is not None}

    rules = _rules(groups, names, values_of, {})
    return [("capstan.parameter_groups", rules)] if rules else []


def _refuse_trained(optimizer):
    for state in optimizer.state.values():
        # Adagrad's constructor makes states, of no step.
        if state and float(state.get("step", 1)) > 0:
            raise ConfigError(
                f"optimizer: this {type(optimizer).__name__} has trained already, and what it keeps of that would be lost. Hand "
                "over a new one, and load a checkpoint of the engine's.")


def _decoupled(name):
    return {"Adam": False, "AdamW": True}.get(name)


def _check_options(optimizer):
    """Raises ConfigError for an option that the plugin of the optimizer's name lacks."""
    name = type(optimizer).__name__
    first = optimizer.param_groups[0]
    for place, group in enumerate(optimizer.param_groups):
        for option, value in _FIXED.items():
            if group.get(option, value) != value:
                raise ConfigError(f"optimizer: {option}={group[option]} of {name} is not known here (parameter group {place}). "
                                  f"{_WITHOUT[option]}")
        option = "decoupled_weight_decay"
        if _decoupled(name) is not None and bool(group.get(option)) != bool(first.get(option)):
            raise ConfigError(f"optimizer: {option} of {name} differs between parameter groups 0 and {place}, and is one for all "
                              "here. Give all groups the same.")


def translation_of(optimizer: Any, names: dict) -> list:
    """An optimizer of torch.optim as (key path, value): the plugin of the same name, and its parameter groups."""
    name = type(optimizer).__name__
    _refuse_trained(optimizer)
    _check_options(optimizer)
    fixed = (*_IMPLEMENTATIONS, *_FIXED, *(("decoupled_weight_decay",) if _decoupled(name) is not None else ()))

    def values_of(group):
        plain = {key: _plain(key, group[key]) for key in optimizer.defaults if key not in fixed and key in group}
        return {key: value for key, value in plain.items() if value is not None}

    params = values_of(optimizer.defaults)
    if _decoupled(name) is not None:
        decoupled = bool(optimizer.param_groups[0].get("decoupled_weight_decay", _decoupled(name)))
        params.update(torch_adam=True, adam_w_mode=decoupled)
        name = name if decoupled else "Adam"
    values = [("optimizer", {"type": name, "params": params})]
    rules = _rules(optimizer.param_groups, names, values_of, params)
    if rules:
        values.append(("capstan.parameter_groups", rules))
    return values


def refuse_own(optimizer: Any) -> None:
    """Raises ConfigError for an optimizer that cannot run in the engine's place."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("optimizer: LBFGS calls the model again within an update, and engine.step() has the gradients of one "
                          "call. Train with plain torch, or take another optimizer.")


def of_program(optimizer, model_parameters, parameters):
    """Parameter groups that the program hands over, and key paths and values that follow from them."""
    names = {id(parameter): name for name, parameter in parameters}
    if optimizer is None:
        groups = parameters_of(model_parameters)
        return groups, rules_of(groups, names)
    if is_translated(optimizer):
        return optimizer.param_groups, translation_of(optimizer, names)
    refuse_own(optimizer)
    return optimizer.param_groups, []
