"""The loop of `capstan train` for modules of PyTorch."""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import default_collate

from capstan import _core, _distributed
from capstan._config import source_of
from capstan._core import ConfigError, RuntimeFault
from capstan._loader import loss_of
from capstan._module import call, refuse_wrapped, shown_of
from capstan.engine import Engine

__all__ = ["Run"]


def _loss(model, batch):
    return loss_of(call(model, batch))


class _Parts:
    """The functions that the core calls while it runs. They do not refer to the Run, which owns the core's object."""

    def __init__(self, model, data, eval_data, loss, collate_fn):
        self.engine = None
        self._build, self._data, self._eval_data, self._loss, self._collate = model, data, eval_data, loss, collate_fn
        self._built = None

    def functions(self):
        own = {name: getattr(self, name) for name in ("describe", "begin", "end", "step", "eval_loss", "print")}
        return {**own, "read": functools.partial(self._read, self._data), "read_eval": functools.partial(self._read, self._eval_data)}

    def _module(self):
        module = self._build()
        refuse_wrapped(module)
        return module

    def describe(self):
        self._built = self._module()
        shown = shown_of(self._built)
        return tuple(shown[key] for key in ("description", "parameters", "buffers", "modules", "facts", "module"))

    def begin(self, make):
        module, self._built = self._built, None
        self.engine = Engine(self._module() if module is None else module, None, maker=make)
        return self.engine._core

    def end(self):
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.destroy()

    def _read(self, data, numbers):
        return self._collate([data[number] for number in numbers])

    def step(self, batch):
        self.engine.backward(self._loss(self.engine, batch))
        self.engine.step()

    def eval_loss(self, batch):
        return self._loss(self.engine.module, batch)

    def print(self, line):
        print(line, flush=True)


def _count(data, name):
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ConfigError(f"{name}: must have samples by number, len(data) and data[i], got a {type(data).__name__}. The order of "
                          "a run's samples is the run's.")
    if len(data) == 0:
        raise ConfigError(f"{name}: has no samples.")
    return len(data)


class Run:
    """The loop of `capstan train` for a module: the order of samples, evaluations, saves, signals, resume, and recovery from
    lost processes, as the sections capstan.run and capstan.elastic of the configuration say.

        run = capstan.Run(Net, "ds_config.json", data)
        sys.exit(run.train())

    `model`: a function without arguments, or a class, that makes the module; under `capstan launch --elastic` it is called
    again whenever processes change. `data` and `eval_data` have samples by number: len(data), data[i]. `loss(model, batch)`
    computes the loss of a micro-batch that `collate_fn` has made of samples; without it, the loss is that which
    Engine.train_batch() takes from the module's output. `resume`: a checkpoint, DIR or DIR:TAG. `init_from`: weights, a
    safetensors file. `fingerprint`: a text that other data does not have; a run that is resumed on other data logs a warning.
    `handles_signals`: SIGINT and SIGTERM end the run after the step under way, which is saved.

    One thread uses it. Raises ConfigError, PluginError, RuntimeFault, and what the program's functions raise.
    """

    def __init__(self, model: Callable[[], Any], config: Any, data: Sequence, *, eval_data: Sequence | None = None,
                 loss: Callable[[Any, Any], Any] | None = None, collate_fn: Callable[[list], Any] | None = None,
                 resume: str = "", init_from: str = "", fingerprint: str = "", handles_signals: bool = True):
        if not callable(model) or hasattr(model, "forward") and not isinstance(model, type):
            raise ConfigError("model: must be a function that makes the module, or its class: where processes change, another "
                              f"one is made. Got a {type(model).__name__}; write lambda: ... around what makes it.")
        source = source_of(config)
        meeting, listening = _distributed.meeting()
        self._parts = _Parts(model, data, eval_data, loss or _loss, collate_fn or default_collate)
        self._handles_signals = handles_signals and threading.current_thread() is threading.main_thread()
        self._core = _core.Run(
            config=source.config, source=source.source, in_memory=source.in_memory, functions=self._parts.functions(),
            data=(_count(data, "data"), fingerprint),
            eval_samples=None if eval_data is None else _count(eval_data, "eval_data"), resume=str(resume or ""),
            init_from=str(init_from or ""), handles_signals=self._handles_signals, place=meeting, listening_socket=listening)

    @property
    def engine(self) -> Engine:
        """The engine, while the run is under way. Under `capstan launch --elastic` it is another one whenever processes
        change. Raises RuntimeFault outside of a run."""
        if self._parts.engine is None:
            raise RuntimeFault("engine: the run is not under way.")
        return self._parts.engine

    def train(self) -> int:
        """Trains until the run ends, once. Returns the exit code of the process: 0, or 130 where a signal has ended the
        run. Under `capstan launch --elastic` the run goes on when processes are lost or come."""
        with self._signals():
            return self._core.train()

    def __iter__(self) -> Iterator[Any]:
        """The same run as a loop of the program's own, one micro-batch a turn:

            for batch in run:
                run.engine.backward(run.engine(**batch).loss)
                run.engine.step()

        Evaluations, saves and signals come between two steps. Raises RuntimeFault under `capstan launch --elastic`, where a
        step that has lost a process is done again: train() does that, with `loss` as a function."""
        with self._signals():
            while (batch := self._core.next()) is not None:
                yield batch

    @property
    def exit_code(self) -> int:
        """What train() would have returned, after a loop over the run."""
        return self._core.exit_code()

    def _signals(self):
        return _own_handler() if self._handles_signals else contextlib.nullcontext()


@contextlib.contextmanager
def _own_handler():
    """Marks SIGINT as handled: engine.step() raises no KeyboardInterrupt then. The core's handler takes the place of this one,
    and gives it back."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
