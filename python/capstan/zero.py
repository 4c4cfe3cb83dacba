"""Models larger than a process, and values that are away: the names of deepspeed.zero."""

import contextlib
import enum
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from capstan._core import Deferral, RuntimeFault
from capstan._distributed import processes

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "register_external_parameter", "unregister_external_parameter"]

_engines = weakref.WeakSet()  # those that hold parameters
_deferrals = WeakTensorKeyDictionary()  # a parameter that was made in Init, and by which


class ZeroParamStatus(enum.IntEnum):
    """Whether the values of a parameter are on this rank."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def mark(names, module):
    """Gives the parameters that are partitioned `ds_id` and `ds_status`, by which programs tell that they have to gather them.
    `names`: of the engine's parameters, by id. Returns what removes the marks."""
    marked = [parameter for parameter in module.parameters() if id(parameter) in names]
    for number, parameter in enumerate(marked):
        parameter.ds_id = number
        parameter.ds_status = int(ZeroParamStatus.NOT_AVAILABLE)  # an int, which any program can unpickle

    def undo():
        for parameter in marked:
            del parameter.ds_id, parameter.ds_status

    return undo


class Init(contextlib.AbstractContextManager):
    """`with capstan.zero.Init(): model = Net()` builds a model whose large parameters have no memory until
    capstan.initialize() takes it: at ZeRO stage 3 of several processes it then never stands whole on one. The values are,
    bit for bit, those of plain construction.

    Arguments are accepted as in DeepSpeed; `enabled=False` does nothing. Within a process alone it does nothing.
    """

    _open = []

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True, remote_device=None, pin_memory=False,
                 config_dict_or_path=None, config=None, enabled=True, dtype=None, mpu=None, **_ignored):
        self._deferral = Deferral() if enabled and processes() > 1 else None
        self._entered = False
        self._dtype, self._before = dtype, None

    def __enter__(self):
        # A model that is built within another's construction belongs to that one.
        if self._deferral is not None and not Init._open:
            self._deferral.enter()
            Init._open.append(self._deferral)
            self._entered = True
            _register_parameter.watch()
        if self._dtype is not None:
            self._before = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
        return self

    def __exit__(self, *thrown):
        if self._before is not None:
            torch.set_default_dtype(self._before)
        if self._entered:
            _register_parameter.stop()
            Init._open.remove(self._deferral)
            self._deferral.exit()
        return False


class _register_parameter:
    """Remembers the parameters that modules get while Init is open."""

    _plain = None

    @classmethod
    def watch(cls):
        cls._plain = torch.nn.Module.register_parameter
        plain = cls._plain

        def register_parameter(self, name, param):
            plain(self, name, param)
            if param is not None and Init._open:
                _deferrals[param] = Init._open[0]

        torch.nn.Module.register_parameter = register_parameter

    @classmethod
    def stop(cls):
        torch.nn.Module.register_parameter = cls._plain


def deferral_of(parameters):
    """What made the parameters of one model without memory; None: nothing did. Makes the values where it was several."""
    found = []
    for parameter in parameters:
        deferral = _deferrals.get(parameter)
        if deferral is not None and deferral not in found and deferral.has(parameter):
            found.append(deferral)
    if len(found) > 1:
        for parameter in parameters:
            make(parameter)
        return None
    return found[0] if found else None


def make(parameter):
    """Gives a parameter that was made in Init its values."""
    deferral = _deferrals.get(parameter)
    if deferral is not None and deferral.has(parameter):
        deferral.make(parameter)


class GatheredParameters(contextlib.AbstractContextManager):
    """`with capstan.zero.GatheredParameters(params, modifier_rank=0):` holds the values of parameters, whole, in memory.
    With `modifier_rank`, all ranks take the values that this rank has at the end, whatever the stage. Called by all ranks.

    `params`: a parameter, a list of them, or a module's parameters(). Parameters of no engine are simply there; those that were
    made in Init take the values of `modifier_rank` too, by torch.distributed where that is initialised.
    """

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        if isinstance(params, torch.Tensor):
            params = [params]
        elif isinstance(params, dict):
            params = params.values()
        self._params = list(params) if enabled else []
        self._rank = modifier_rank
        self._scopes = []
        self._others = []  # parameters of no engine, made in Init

    def __enter__(self):
        left = {id(parameter): parameter for parameter in self._params if parameter is not None}
        for engine in list(_engines):
            names = [name for key, name in engine._names_of.items() if key in left]
            for key in [key for key in left if key in engine._names_of]:
                del left[key]
            if names:
                self._scopes.append(engine._core.gather(names, self._rank if engine._can_be_written() else None))
        for parameter in left.values():
            make(parameter)
        self._others = [parameter for parameter in left.values() if parameter in _deferrals]
        return self

    def __exit__(self, *thrown):
        for scope in reversed(self._scopes):
            scope.close()
        self._scopes = []
        dist = torch.distributed
        if self._rank is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            for parameter in self._others:
                dist.broadcast(parameter.data, src=self._rank)
        return False


def register_external_parameter(module, parameter):
    """Does nothing: the engine sees which operators use a parameter, whichever module it belongs to."""


def unregister_external_parameter(module, parameter):
    """Does nothing, as register_external_parameter()."""


def engine_of(module):
    """The engine that trains a module; None: none does."""
    for engine in list(_engines):
        if engine.module is module:
            return engine
    return None


def add_engine(engine):
    _engines.add(engine)


def remove_engine(engine):
    _engines.discard(engine)


def refuse_meta(parameters):
    """Raises RuntimeFault for parameters on torch's meta device."""
    for name, parameter in parameters:
        if parameter.is_meta:
            raise RuntimeFault(
                f"parameter '{name}' is on torch's meta device, without values. Build the model in 'with capstan.zero.Init():', "
                "which gives parameters their values part by part."
            )
