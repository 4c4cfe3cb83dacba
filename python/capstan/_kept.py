"""What an engine keeps of a parameter beside the values that the module computes with, under the names of deepspeed.utils.

`param` is a parameter of the module. A getter returns a float32 copy, and None for a parameter that no engine trains. All ranks
call safe_get_full_*, safe_set_full_* and safe_set_local_fp32_param together, in the same order."""

from torch import Tensor

from capstan import zero
from capstan._core import RuntimeFault

__all__ = ["safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state", "safe_get_local_fp32_param",
           "safe_get_local_grad", "safe_get_local_optimizer_state", "safe_set_full_fp32_param", "safe_set_full_grad",
           "safe_set_full_optimizer_state", "safe_set_local_fp32_param", "safe_set_local_grad", "safe_set_local_optimizer_state"]

_MASTER, _GRADIENT = "master", "gradient"  # as the engine's core calls them


def _place(param):
    """The engine that trains a parameter and the parameter's name there; (None, None): none does."""
    for engine in list(zero._engines):
        name = engine._names_of.get(id(param))
        if name is not None and engine._core.trains(name):
            return engine, name
    return None, None


def _place_to_set(param, call):
    engine, name = _place(param)
    if engine is None:
        raise RuntimeFault(f"{call}: no engine trains this parameter.")
    if engine._core.inside():
        raise RuntimeFault(f"{call}: '{name}' takes no other values while the module runs. Call it outside of forward.")
    return engine, name


def _get(param, what, whole):
    engine, name = _place(param)
    return None if engine is None else engine._core.kept(name, what, whole)


def _state_of_own(engine, name, key):
    """A state of an optimizer that the program brought and that runs as it is."""
    states = engine._own.optimizer.state.get(engine._own._parameters[name], {})
    if key not in states:
        has = ", ".join(repr(one) for one in states) or "none: it makes its states in its first step"
        raise RuntimeFault(f"'{key}' of '{name}': the optimizer has no such state; it has {has}.")
    return states[key]


def safe_get_full_fp32_param(param: Tensor) -> Tensor | None:
    """The fp32 values that the optimizer updates, in the parameter's shape."""
    return _get(param, _MASTER, True)


def safe_get_full_grad(param: Tensor) -> Tensor | None:
    """The gradient that the next step() uses before clipping: the mean over ranks and micro-batches, without the loss scale. Between
    the last backward of a step and step(); elsewhere RuntimeFault. None where no rank has one."""
    engine, name = _place(param)
    return param.grad if engine is None else engine._core.kept(name, _GRADIENT, True)


def safe_get_full_optimizer_state(param: Tensor, optim_state_key: str) -> Tensor | None:
    """A state of the optimizer, "exp_avg" for instance. RuntimeFault for one that it lacks, naming those that it has."""
    engine, name = _place(param)
    if engine is None:
        return None
    if engine._own is not None:
        state = _state_of_own(engine, name, optim_state_key)
        return state.detach().clone() if isinstance(state, Tensor) else state
    return engine._core.kept(name, optim_state_key, True)


def safe_get_local_fp32_param(param: Tensor) -> Tensor | None:
    """The part of the fp32 values that this rank updates, one dimension."""
    return _get(param, _MASTER, False)


def safe_get_local_grad(param: Tensor) -> Tensor | None:
    """The part of the gradient of which this rank updates the values, one dimension; when, as safe_get_full_grad()."""
    return _get(param, _GRADIENT, False)


def safe_get_local_optimizer_state(param: Tensor, optim_state_key: str) -> Tensor | None:
    """The part of a state of the optimizer that this rank keeps, one dimension."""
    engine, name = _place(param)
    if engine is not None and engine._own is not None:
        return safe_get_full_optimizer_state(param, optim_state_key).flatten()
    return _get(param, optim_state_key, False)


def safe_set_full_fp32_param(param: Tensor, value: Tensor) -> None:
    """Gives the parameter other values, fp32 and, in its own type, those that the module computes with."""
    engine, name = _place_to_set(param, "safe_set_full_fp32_param")
    engine._core.set_kept(name, _MASTER, value, True)


def safe_set_full_grad(param: Tensor, value: Tensor) -> None:
    """Gives the step under way another gradient of the parameter, when safe_get_full_grad() has one."""
    engine, name = _place_to_set(param, "safe_set_full_grad")
    engine._core.set_kept(name, _GRADIENT, value, True)


def safe_set_full_optimizer_state(param: Tensor, value: Tensor, optim_state_key: str) -> None:
    """Gives a state of the optimizer other values."""
    engine, name = _place_to_set(param, "safe_set_full_optimizer_state")
    if engine._own is not None:
        _state_of_own(engine, name, optim_state_key).copy_(value)
    else:
        engine._core.set_kept(name, optim_state_key, value, True)


def safe_set_local_fp32_param(param: Tensor, value: Tensor) -> None:
    """As safe_set_full_fp32_param(), of the part that this rank updates: each rank gives its own."""
    engine, name = _place_to_set(param, "safe_set_local_fp32_param")
    engine._core.set_kept(name, _MASTER, engine._core.joined(name, value), True)


def safe_set_local_grad(param: Tensor, value: Tensor) -> None:
    """As safe_set_full_grad(), of this rank's part."""
    engine, name = _place_to_set(param, "safe_set_local_grad")
    engine._core.set_kept(name, _GRADIENT, value, False)


def safe_set_local_optimizer_state(param: Tensor, value: Tensor, optim_state_key: str) -> None:
    """As safe_set_full_optimizer_state(), of this rank's part."""
    engine, name = _place_to_set(param, "safe_set_local_optimizer_state")
    if engine._own is not None:
        _state_of_own(engine, name, optim_state_key).view(-1).copy_(value)
    else:
        engine._core.set_kept(name, optim_state_key, value, False)
