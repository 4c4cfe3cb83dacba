"""One process of a run that capstan.verify() compares: python -m capstan._verify_run CALL REQUEST

CALL holds the functions that make the module and the data; REQUEST is what cli/verify/verify_runs.cpp writes. What it records is
described in cli/verify/verify_record.hpp."""

import copy
import hashlib
import json
import math
import multiprocessing.spawn
import os
import pickle
import random
import sys
from collections.abc import Mapping

import torch

import capstan
from capstan import _core
from capstan._loader import loss_of
from capstan._module import call

_IGNORED = -100  # labels that do not count, as torch.nn.functional.cross_entropy has them


class Request:
    """A run to record: its members are those of the file."""

    def __init__(self, text: str):
        vars(self).update(json.loads(text))

    def file(self, name: str) -> str:
        return os.path.join(self.record, name)


def tensors_of(batch):
    """The tensors of a micro-batch, with their names."""
    if isinstance(batch, torch.Tensor):
        return [("input", batch)]
    named = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    return [(str(name), value) for name, value in named if isinstance(value, torch.Tensor)]


def bytes_of(tensor):
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def digests_of(batch):
    """A digest for each row of a micro-batch, 16 digits, over all of its tensors."""
    tensors = [tensor for _, tensor in tensors_of(batch) if tensor.dim() > 0]
    rows = max((len(tensor) for tensor in tensors), default=0)
    return [hashlib.blake2b(b"".join(bytes_of(tensor[row]) for tensor in tensors if len(tensor) == rows),
                            digest_size=8).hexdigest() for row in range(rows)]


def counted_labels(batch):
    """Labels that count in a loss over tokens; None: the batch has no labels of tokens. The first of a sequence has nothing
    before it that could predict it."""
    labels = dict(tensors_of(batch)).get("labels")
    if labels is None or labels.dim() < 2 or labels.is_floating_point():
        return None
    return int((labels[..., 1:] != _IGNORED).sum())


def states_of_generators():
    states = {"LibTorch": torch.get_rng_state().numpy().tobytes(), "Python": repr(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["NumPy"] = repr([str(part) if not hasattr(part, "tobytes") else part.tobytes()
                                for part in numpy.random.get_state()])
    return states


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _number(value):
    return value if math.isfinite(value) else "not finite"


class Recorder:
    """Writes the record of a run, step by step."""

    def __init__(self, request, rank=0, world=1):
        self.request, self.rank, self.world = request, rank, world
        # Beside what cli/verify/verify_record.hpp describes, for peers: "rates" of each step, the optimizer's "groups", and the whole
        # "config".
        self.facts = {"losses": [], "samples": [], "token_losses": [], "draws": [], "batch_norms": [], "changed_inputs": [],
                      "rates": []}
        self.batches = []
        self._step = []

    def begin(self, first_step, module, weights, effective=None):
        self.facts.update(parameters=list(weights), first_step=first_step, config=effective)
        self.facts["batch_norms"] = [path for path, part in module.named_modules()
                                     if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training]
        self._write("first_weights.safetensors", weights)

    def forward(self, batch, run):
        """run(batch), the loss of a micro-batch."""
        before, inputs = states_of_generators(), {name: bytes_of(tensor) for name, tensor in tensors_of(batch)}
        seen, labels = digests_of(batch), counted_labels(batch)
        loss = run(batch)
        after = states_of_generators()
        self._note("draws", [source for source, state in after.items() if before.get(source, state) != state])
        self._note("changed_inputs", [name for name, tensor in tensors_of(batch) if inputs[name] != bytes_of(tensor)])
        self._step.append((seen, float(loss.detach()), labels))
        return loss

    def _note(self, key, names):
        self.facts[key] += [name for name in names if name not in self.facts[key]]

    def gradients(self, step, gradients):
        self._write(f"gradients{step}.safetensors", gradients)

    def end_step(self, rate):
        ranks = self._of_all_ranks(self._step)
        self._step = []
        micro_batches = [one for rank in ranks for one in rank]
        mean = sum(loss for _, loss, _ in micro_batches) / len(micro_batches)
        self.facts["samples"].append(sorted(digest for seen, _, _ in micro_batches for digest in seen))
        self.facts["losses"].append(_number(mean))
        counts = [labels for _, _, labels in micro_batches]
        tokens = sum(count or 0 for count in counts)
        if tokens > 0:
            mean_over_tokens = sum(loss * (count or 0) for _, loss, count in micro_batches) / tokens
            self.facts["token_losses"].append(_number(mean_over_tokens))
        self.facts["rates"].append(rate)

    def _of_all_ranks(self, value):
        if self.world == 1:
            return [value]
        values = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def end(self, weights, states=None):
        self._write("weights.safetensors", weights)
        if states is not None:
            self._write("states.safetensors", states)
        if self.request.keep_batches:
            torch.save(self.batches, self.request.file(f"batches-{self.rank}.pt"))
        if self.rank > 0:
            return
        with open(self.request.file("run.json.part"), "w", encoding="utf-8") as file:
            json.dump(self.facts, file)
        # Last: the record is whole where this file is there.
        os.replace(self.request.file("run.json.part"), self.request.file("run.json"))

    def _write(self, name, tensors):
        if self.rank == 0:
            _core.write_safetensors(self.request.file(name), [
                (key, value.detach().to("cpu", torch.float32).contiguous()) for key, value in tensors.items()
                if value is not None])


def record(request, build_model, data, collate_fn):
    """Trains by Capstan."""
    if capstan._distributed.processes() > 1:
        capstan.init_distributed()

    def make():
        seed_all(request.seed)
        module = build_model()
        return module, *capstan.initialize(model=module, config=request.config, training_data=data, collate_fn=collate_fn)

    if request.second:
        _, engine, _, loader, _ = make()
        engine.train_batch(iter(loader))
        engine.destroy()
    module, engine, _, loader, _ = make()
    if request.resume:
        engine.load_checkpoint(request.resume)
    recorder = Recorder(request, engine.global_rank, engine.world_size)
    trained = [name for name, _ in module.named_parameters() if engine._core.trains(name)]

    def kept(what):
        return {name: engine._core.kept(name, what, True) for name in trained}

    recorder.begin(engine.global_steps, module, kept("master"), engine.config)
    recorder.facts["groups"] = [{"numbers": dict(numbers), "parameters": names} for numbers, names in engine._core.groups()]
    batches = (batch for _ in iter(int, 1) for batch in loader)
    while engine.global_steps < request.until:
        rate, step = engine.get_lr(), engine.global_steps
        for _ in range(engine.gradient_accumulation_steps()):
            batch = next(batches)
            if request.keep_batches:
                recorder.batches.append(copy.deepcopy(batch))  # forward may change it in place
            engine.backward(recorder.forward(batch, lambda batch: loss_of(call(engine, batch))))
            if engine.is_gradient_accumulation_boundary():
                recorder.gradients(step, kept("gradient"))
            engine.step()
        recorder.end_step(rate)
    if request.save:
        engine.save_checkpoint(request.save)
        engine.finish_saving()
    states = {f"{name}/{state}": engine._core.kept(name, state, True) for name in trained
              for state in engine._core.states(name)}
    recorder.end(kept("master"), states)
    engine.destroy()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # rank 0 keeps the place where they meet
        torch.distributed.destroy_process_group()


def main(call_file: str, request_file: str) -> int:
    with open(call_file, "rb") as file:
        multiprocessing.spawn.prepare(pickle.load(file))
        made = pickle.load(file)
    with open(request_file, encoding="utf-8") as file:
        request = Request(file.read())
    seed_all(request.seed)
    data = made["data"]
    data = data() if callable(data) and not hasattr(data, "__getitem__") else data
    run = record
    if request.peer:
        from capstan import _verify_peers

        run = {"plain": _verify_peers.plain, "deepspeed": _verify_peers.deepspeed}[request.peer]
    seed_all(request.seed)
    try:
        run(request, made["build_model"], data, made["collate_fn"])
    except capstan.ConfigError as error:
        print(f"capstan: error: {error}", file=sys.stderr)
        return 3
    except (capstan.RuntimeFault, capstan.PluginError) as error:
        print(f"capstan: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
