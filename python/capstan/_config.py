"""What people hand over as a configuration, as a text that the engine reads."""

import json
import os
from typing import Any, NamedTuple

from capstan._core import ConfigError


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
