"""What an engine hangs on a module, and on the interpreter."""

import contextlib
import sys
import weakref

import torch

from capstan import _core, _distributed, zero


def layer(name, hidden, function):
    """Runs `function(hidden)`, a tensor of the same kind, as the layer `name` of the model, "blocks.3". Within an engine's
    forward the components that are attached to layers (random-LTD, progressive layer drop, activation checkpointing) may
    change what goes in and comes out, or leave the layer out; anywhere else it just calls `function`."""
    return _core.layer(name, hidden, function)


def checkpoint(function, hidden):
    """Runs `function(hidden)` and forgets its activations until backward computes them again (activation checkpointing),
    bit for bit. Outside of an engine's training it just calls `function`."""
    return _core.checkpoint(hidden, function)


class _Settle:
    """Waits for values that are still coming from other ranks when the module is used without the engine: with overlap_comm
    they come until the next forward. Copies of the module, which no engine trains, wait for nothing."""

    def __init__(self, engine=None):
        self._engine = weakref.ref(engine) if engine is not None else lambda: None

    def __call__(self, *_args):
        engine = self._engine()
        if engine is not None and not engine._core.inside():
            engine._core.gather([], None).close()  # holding waits for what is coming

    def __reduce__(self):
        return _Settle, ()

    def __deepcopy__(self, memo):
        return _Settle()


def attach(engine):
    """What an engine hangs on its module. Returns what undoes it, functions."""
    undo = []
    facts, module = engine._facts, engine.module
    for name in facts["layers"]:
        undo.append(_Layer(module.get_submodule(name), name).undo)
    if engine._core.world_size() > 1 and facts["stage"] == 3:
        undo += [_Outside(module, engine).undo, zero.mark(engine._names_of, module)]
    elif engine._core.world_size() > 1 and facts["stage"] > 0 and facts["overlap"]:
        settle = _Settle(engine)
        undo += [module.register_forward_pre_hook(settle).remove, module.register_state_dict_pre_hook(settle).remove]
    return undo


class _Forward:
    """Stands in for the forward of one module; copies of the module have their plain forward."""

    def __init__(self, module):
        self._module, self._own = module, module.__dict__.get("forward")
        self.__wrapped__ = module.forward  # for inspect.signature
        module.forward = self

    def undo(self):
        if self._module.__dict__.get("forward") is self:
            del self._module.__dict__["forward"]
            if self._own is not None:
                self._module.forward = self._own

    def __reduce__(self):
        return getattr, (self._module, "forward")

    def __deepcopy__(self, memo):
        copied = memo.get(id(self._module), self._module)
        return type(copied).forward.__get__(copied)


class _Outside(_Forward):
    """A call of the module itself, at ZeRO stage 3 and without gradients, is an evaluation of the engine's: evaluation loops and
    generate() of others hold the module alone."""

    def __init__(self, module, engine):
        super().__init__(module)
        self._engine = weakref.ref(engine)

    def __call__(self, *args, **kwargs):
        engine = self._engine()
        if engine is None or torch.is_grad_enabled() or engine._core.inside():
            return self.__wrapped__(*args, **kwargs)
        return engine._core.evaluate(self.__wrapped__, args, kwargs)


class _Layer(_Forward):
    """The forward of a submodule that takes its hidden states [batch, tokens, width] first and returns them, or a tuple that
    begins with them, as a layer for components."""

    def __init__(self, module, name):
        super().__init__(module)
        self._name = name

    def __call__(self, *args, **kwargs):
        if args:
            hidden, rest = args[0], args[1:]
        else:
            rest, kwargs = (), dict(kwargs)
            hidden = kwargs.pop("hidden_states")
        others = None

        def run(value):
            nonlocal others
            out = self.__wrapped__(value, *rest, **kwargs)
            if isinstance(out, tuple):
                others = out[1:]
                return out[0]
            return out

        result = _core.layer(self._name, hidden, run)
        return result if others is None else (result, *others)


def tell_of_failures():
    """The other ranks' messages say what ended this one."""
    if getattr(sys.excepthook, "_capstan", False) or _distributed.processes() < 2:
        return
    before = sys.excepthook

    def hook(kind, value, traceback):
        for engine in list(zero._engines):
            with contextlib.suppress(Exception):
                engine._core.tell_failure(f"{kind.__name__}: {value}")
        before(kind, value, traceback)

    hook._capstan = True
    sys.excepthook = hook
