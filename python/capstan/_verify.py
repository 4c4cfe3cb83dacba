"""The same training in every way that a configuration allows, compared bit by bit: `capstan verify` for any module."""

import json
import multiprocessing.spawn
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from capstan._config import source_of
from capstan._core import ConfigError, RuntimeFault

PEERS = ("plain", "deepspeed")
# How `capstan verify` ends where the configuration is wrong, and where it was interrupted.
_CONFIG, _INTERRUPTED = 3, 130


class Verification:
    """Returned by verify(). `kept`: whether no variant differs or failed. `variants`: dicts of "name", "verdict" ("kept",
    "broken", "failed", "not there"), "loss", "gradients", "weights" and "remark". As a text it is the table."""

    def __init__(self, found: dict, table: str):
        self.kept: bool = found["kept"]
        self.variants: list[dict[str, str]] = found["variants"]
        self._table = table

    def __str__(self):
        return self._table

    def __repr__(self):
        return f"<Verification: {'kept' if self.kept else 'broken'}, {len(self.variants)} variants>"


def program() -> str:
    """The program `capstan` of this package: within it in a wheel, in the build folder beside it otherwise."""
    own = os.path.dirname(os.path.abspath(__file__))
    for folder in (own, os.path.dirname(os.path.dirname(own))):
        path = os.path.join(folder, "bin", "capstan")
        if os.path.exists(path):
            return path
    raise RuntimeFault(f"verify: there is no program bin/capstan in '{own}'. Install the wheel anew.")


def _packed(call: dict) -> bytes:
    """What other processes need to make the same call: how this one was started, and the call."""
    preparation = multiprocessing.spawn.get_preparation_data("capstan.verify")
    preparation.pop("authkey", None)  # of multiprocessing's own connections
    if "init_main_from_path" not in preparation and "init_main_from_name" not in preparation and any(
            getattr(value, "__module__", "") == "__main__" for value in call.values()):
        raise RuntimeFault("verify: a function that was typed in cannot be run by other processes. Write it to a module, a file "
                           "of its own, and import it.")
    try:
        return pickle.dumps(preparation) + pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RuntimeFault(
            f"verify: build_model, data and collate_fn go to other processes: {error}. Define functions at the top of a module, "
            "not within another function or as a lambda; `data` may be such a function, which returns the data.") from error


def _checked(build_model, steps, world, peers):
    if not callable(build_model) or isinstance(build_model, torch.nn.Module):
        raise ConfigError("verify: build_model must be a function without arguments that returns the module: each run makes one "
                          "of its own.")
    for name, value, least in (("steps", steps, 2), ("world", world, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"verify: {name} must be a whole number of at least {least}, got {value!r}.")
    for one in peers:
        if one not in PEERS:
            raise ConfigError(f"verify: peer must be of {', '.join(map(repr, PEERS))}, got {one!r}.")


def verify(build_model: Callable[[], torch.nn.Module], config: str | dict, data: Any, steps: int = 4, *, world: int = 2,
           peer: str | Sequence[str] = (), only: str = "", collate_fn: Callable | None = None,
           html: str | os.PathLike | None = None, verbose: bool = True) -> Verification:
    """Trains `steps` steps of a module in every way that its configuration allows, and compares samples, losses, gradients and
    weights: ZeRO stages, 1 and `world` processes, micro-batches, overlap, offload, recomputation, resuming.

    build_model: a function that makes the module. It is called in other processes, after torch, random and numpy got the seed
        capstan.run.seed, as `data` is where that is a function.
    config: a DeepSpeed configuration, a path or a dict. data: a data set for capstan.initialize(training_data=...).
    peer: loops of others to compare with: "plain", PyTorch's own, and "deepspeed", where it is installed.
    only: variants whose name contains it. html: a page with badges. verbose: prints rows as they come.

    The program that calls it is imported by the other processes, as multiprocessing does it: protect its main part by
    `if __name__ == "__main__":`. Raises ConfigError and RuntimeFault where nothing can be compared; a promise that is broken
    is in what is returned. See docs/explanation/numerics.md.
    """
    peers = (peer,) if isinstance(peer, str) else tuple(peer)
    _checked(build_model, steps, world, peers)
    call = _packed({"build_model": build_model, "data": data, "collate_fn": collate_fn})
    with tempfile.TemporaryDirectory(prefix="capstan-verify-call-") as folder:
        call_file, found_file, errors = (os.path.join(folder, name) for name in ("call", "found.json", "errors"))
        with open(call_file, "wb") as file:
            file.write(call)
        words = [program(), "verify", "--config", _config_file(config, folder), "--steps", str(steps), "--world", str(world),
                 "--json-file", found_file, "--only", only]
        for word in (sys.executable, "-m", "capstan._verify_run", call_file):
            words.append(f"--program={word}")
        for one in peers:
            words.append(f"--peer={one}")
        if html is not None:
            words += ["--html", os.fspath(html)]
        table, code = _run(words, errors, verbose)
        return _result(table, code, found_file, errors)


def _config_file(config, folder):
    source = source_of(config)
    if not source.in_memory:
        return source.config
    path = os.path.join(folder, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source.config)
    return path


def _run(words, errors, verbose):
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    lines = []
    with open(errors, "w", encoding="utf-8") as file, subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=file, text=True, env=environment) as process:
        try:
            for line in process.stdout:
                lines.append(line)
                if verbose:
                    print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.wait()
            raise
    return "".join(lines), process.returncode


def _result(table, code, found_file, errors):
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    with open(errors, encoding="utf-8", errors="replace") as file:
        said = file.read().strip()
    if os.path.exists(found_file):
        with open(found_file, encoding="utf-8") as file:
            found = json.load(file)
        first = found["variants"][0]
        if first["verdict"] == "kept":
            return Verification(found, table)
        kind = ConfigError if first["verdict"] == "not there" else RuntimeFault
        raise kind(f"verify: the plain run: {first['remark']}")
    raise (ConfigError if code == _CONFIG else RuntimeFault)(said.replace("capstan: error: ", "") or f"verify: ended with {code}.")
