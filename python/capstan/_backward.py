"""tensor.backward() of what an engine returned is a backward of that engine."""

import functools

import torch

from capstan import zero
from capstan._core import RuntimeFault

_plain = torch.Tensor.backward


@functools.wraps(_plain)
def _backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    engine = next((one for one in list(zero._engines) if one._core.waits_for(self)), None)
    if engine is None:
        return _plain(self, gradient, retain_graph, create_graph, inputs)
    for name, given in (("create_graph=True", create_graph), ("inputs", inputs is not None)):
        if given:
            raise RuntimeFault(f"backward: {name} is not for what an engine returned, because the engine keeps the gradients of "
                               "its parameters. Use torch.autograd.grad() on a copy of the module, or leave it out.")
    engine.backward(self if gradient is None else (self * gradient).sum(), retain_graph=bool(retain_graph))


def intercept():
    """From now on. Tensors that no engine waits for keep torch's backward."""
    torch.Tensor.backward = _backward
