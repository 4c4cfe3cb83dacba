"""What people hand over as a configuration, as a text that the engine reads."""

import json
import os
from typing import Any, NamedTuple

from capstan._core import ConfigError

_OPTIONS_OF_TORCH = ("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay")
_TRANSLATED = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
               "SGD")


class ConfigSource(NamedTuple):
    """A file's path, or the text of a dict; `source` is its name in messages."""

    config: str
    source: str
    in_memory: bool


def source_of(config: Any) -> ConfigSource:
    """Raises ConfigError for what is not a path, a dict or JSON in base64."""
    if config is None:
        raise ConfigError(
            "config: is missing. Give the path of a DeepSpeed configuration file, or a dict of the same keys: "
            "capstan.initialize(model=net, config=\"ds_config.json\")."
        )
    if isinstance(config, (str, os.PathLike)):
        return ConfigSource(os.fspath(config), os.fspath(config), False)
    if not isinstance(config, dict):
        raise ConfigError(f"config: must be a path or a dict, got {type(config).__name__}.")
    if config.get("steps_per_print") == float("inf"):  # as accelerate says "never"
        config = {**config, "steps_per_print": None}
    try:
        return ConfigSource(json.dumps(config), "config", True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config: is not a configuration of texts, numbers, lists and dicts: {error}.") from error


def _numbers(values: dict) -> dict:
    """What of an optimizer's numbers a configuration can hold."""
    plain = {}
    for key, value in values.items():
        if key in ("params", "initial_lr", *_OPTIONS_OF_TORCH) or value is None:
            continue
        if hasattr(value, "item"):
            value = value.item()
        plain[key] = list(value) if isinstance(value, tuple) else value
    return plain


def _pattern(name: str) -> str:
    return "^" + "".join("\\" + c if c in ".^$*+?()[]{}|\\" else c for c in name) + "$"


def rules_of(groups: list, names: dict, common: dict) -> list:
    """Parameter groups as rules of capstan.parameter_groups: for each group the numbers that differ from `common`."""
    rules = []
    for group in groups:
        own = {key: value for key, value in _numbers(group).items() if common.get(key) != value}
        if own:
            matches = [_pattern(names[id(parameter)]) for parameter in group["params"] if id(parameter) in names]
            if matches:
                rules.append({"match": matches, "params": own})
    return rules


def translation_of(optimizer: Any, names: dict) -> list:
    """An optimizer of torch.optim as (key path, value): the plugin of the same name, and its parameter groups. Empty for
    an optimizer of another kind, which the program runs itself."""
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim") or name not in _TRANSLATED:
        return []
    if optimizer.state:
        raise ConfigError(
            f"optimizer: this {name} has trained already, and what it keeps of that would be lost. Hand over a new one, and "
            "load a checkpoint of the engine's."
        )
    params = _numbers(optimizer.defaults)
    if params.pop("maximize", False):
        raise ConfigError(f"optimizer: maximize of {name} is not known here. Take the loss with a minus sign.")
    for group in optimizer.param_groups:
        group.pop("maximize", None)
    if name in ("Adam", "AdamW"):
        params.update(torch_adam=True, adam_w_mode=name == "AdamW")
    values = [("optimizer", {"type": name, "params": params})]
    rules = rules_of(optimizer.param_groups, names, params)
    if rules:
        values.append(("capstan.parameter_groups", rules))
    return values
