"""What the engine is told of a torch.nn.Module."""

import inspect
import json
import re
from collections.abc import Mapping

import torch

from capstan._core import ConfigError, RuntimeFault


def class_name(module):
    kind = type(module)
    path = kind.__module__
    return ("torch.nn." if path.startswith("torch.nn.modules.") else path + ".") + kind.__qualname__


def once(named):
    """Each tensor under its first name."""
    seen, found = set(), []
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found.append((name, tensor))
    return found


def refuse_tied_data(parameters):
    owners = {}
    for name, parameter in parameters:
        if parameter.numel() == 0:
            continue
        place = (parameter.untyped_storage()._cdata, parameter.storage_offset())
        other = owners.setdefault(place, name)
        if other != name:
            raise RuntimeFault(
                f"parameters '{other}' and '{name}' are two tensors on the same values, and each would be updated by itself. "
                "Tie them by one torch.nn.Parameter under both names."
            )


def non_persistent_buffers(module):
    """The names of the buffers that state_dict() leaves out."""
    return {f"{path}.{key}" if path else key for path, part in module.named_modules(remove_duplicate=False)
            for key in getattr(part, "_non_persistent_buffers_set", ())}


def buffers_of(module):
    """Each buffer once, under a name that state_dict() has where there is one."""
    left_out = non_persistent_buffers(module)
    return once(sorted(module.named_buffers(remove_duplicate=False), key=lambda item: item[0] in left_out))


def saved_names_of(module):
    """How state_dict() names tensors: which buffers it leaves out, and the further names of what has several."""
    left_out, buffers = non_persistent_buffers(module), buffers_of(module)
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    shown = [*once(module.named_parameters(remove_duplicate=False)), *buffers]
    names, first = {name for name, _ in shown}, {id(tensor): name for name, tensor in shown}
    return {"non_persistent_buffers": [name for name, _ in buffers if name in left_out],
            "tied": {name: first[id(tensor)] for name, tensor in named if name not in names and name not in left_out}}


def fp32_buffers_of(module, buffers):
    """The names of buffers that a model of transformers keeps in fp32, for each type that it may compute in."""
    patterns = {"bfloat16": [], "float16": []}
    for path, part in module.named_modules():
        strict = getattr(part, "_keep_in_fp32_modules_strict", None) or ()
        lenient = getattr(part, "_keep_in_fp32_modules", None) or ()
        for names, dtypes in ((strict, ("bfloat16", "float16")), (lenient, ("float16",))):
            found = [("^" + re.escape(path) + r"\..*" if path else "") + name.replace("*", ".*") for name in names]
            for dtype in dtypes:
                patterns[dtype] += found
    return {dtype: [name for name, _ in buffers if any(re.search(pattern, name) for pattern in ones)]
            for dtype, ones in patterns.items()}


def facts_of(module):
    """What the engine may know of the model beyond its tensors: sizes of a configuration as transformers has it."""
    config = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    facts = saved_names_of(module)
    facts["fp32_buffers"] = fp32_buffers_of(module, buffers_of(module))
    for name, keys in {"hidden_size": ("hidden_size", "n_embd", "d_model"), "vocab_size": ("vocab_size",),
                       "layers": ("num_hidden_layers", "n_layer"), "heads": ("num_attention_heads", "n_head")}.items():
        for key in keys:
            value = getattr(config, key, None)
            if isinstance(value, int):
                facts[name] = value
                break
    return facts


def refuse_wrapped(module):
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"model: must be a torch.nn.Module, got {type(module).__name__}.")
    kind = type(module)
    if kind.__module__.startswith("torch.nn.parallel") or kind.__module__.startswith("torch.distributed.fsdp") or \
            kind.__name__.startswith("FSDP"):
        raise ConfigError(
            f"model: is wrapped by {kind.__name__}, which averages gradients and partitions parameters itself. Give the module "
            "within it (.module); the configuration's zero_optimization does the same work."
        )


def positional_names(forward):
    """The names of a function's positional arguments, a tuple."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def shown_of(module):
    """What _core.Engine takes of a module."""
    return {"description": type(module).__name__, "parameters": once(module.named_parameters(remove_duplicate=False)),
            "buffers": buffers_of(module),
            "modules": [(path, class_name(part)) for path, part in module.named_modules()],
            "facts": json.dumps(facts_of(module)), "module": module, "arguments": positional_names(module.forward)}


def call(function, batch):
    if isinstance(batch, Mapping):
        return function(**batch)
    return function(*batch) if isinstance(batch, (tuple, list)) else function(batch)


def next_of(data_iter, caller):
    if not hasattr(data_iter, "__next__"):
        raise RuntimeFault(f"{caller}: takes an iterator of micro-batches, got a {type(data_iter).__name__}. Pass iter(loader).")
    try:
        return next(data_iter)
    except StopIteration:
        raise RuntimeFault(f"{caller}: the iterator has ended before the step had its micro-batches. Make a new one of the "
                           "loader.") from None
