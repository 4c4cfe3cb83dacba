"""Writes one checkpoint of Capstan as DeepSpeed would have, in each of its layouts, and damaged: SOURCE TAG OUT [LAYOUT].

With LAYOUT that one alone: the two of one process and of two at stage 2, "flat-1" and "flat-2", serve any model.
OUT/<layout>/ is what engine.save_checkpoint(folder) of DeepSpeed leaves: a tag and the file `latest`. The layouts follow
DeepSpeed 0.19.8: runtime/zero/stage_1_and_2.py, stage3.py, runtime/bf16_optimizer.py, runtime/fp16/unfused_optimizer.py,
runtime/engine.py and checkpoint/ds_to_universal.py. OUT/damaged/<name>/ are damaged ones, and OUT/damaged/messages.json has
for each the sentence that a reader must give.
"""

import collections
import copy
import enum
import json
import os
import pathlib
import shutil
import struct
import sys
import types
import zipfile

import torch


def module(name):
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made


def classes():
    """Stand-ins for the classes of DeepSpeed whose names the pickles hold."""
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.fp16", "deepspeed.runtime.zero", "deepspeed.utils"):
        module(name)

    class DynamicLossScaler:
        pass

    class fragment_address:  # noqa: N801 the name is DeepSpeed's
        def __init__(self, numel, start):
            self.numel, self.start = numel, start

    class ZeroStageEnum(int, enum.Enum):
        disabled, optimizer_states, gradients, weights = 0, 1, 2, 3

    for made, where in ((DynamicLossScaler, "deepspeed.runtime.fp16.loss_scaler"), (fragment_address, "deepspeed.utils.tensor_fragment"),
                        (ZeroStageEnum, "deepspeed.runtime.zero.config")):
        made.__module__, made.__qualname__ = where, made.__name__
        setattr(module(where), made.__name__, made)
    return DynamicLossScaler, fragment_address, ZeroStageEnum


DynamicLossScaler, fragment_address, ZeroStageEnum = classes()


class Foreign:
    """An object of a program, in its client state."""


class Run:
    """The checkpoint of Capstan: tensors by parameter and state."""

    def __init__(self, folder):
        index = json.loads((folder / "index.json").read_text())
        self.state = json.loads((folder / "state.json").read_text())
        self.tensors = {}
        for one in index["tensors"]:
            data = (folder / one["file"]).read_bytes()[one["begin"]:one["end"]]
            kind = {"F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}[one["dtype"]]
            self.tensors[one["parameter"], one["state"]] = torch.frombuffer(bytearray(data), dtype=kind).reshape(one["shape"])
        self.trained = [name for name, state in self.tensors if state == "exp_avg"]
        self.frozen = [name for name, state in self.tensors if state == "param" and name not in self.trained]
        self.buffers = [name for name, state in self.tensors if state == "buffer"]
        self.updates = self.state["updates"]

    def whole(self, name, state="param"):
        return self.tensors[name, state]

    def model(self, world, groups, kind=torch.float32):
        tensors = collections.OrderedDict((name, self.whole(name).to(kind)) for name in [*self.trained, *self.frozen])
        tensors.update((name, self.whole(name, "buffer")) for name in self.buffers)
        return {
            "module": tensors, "buffer_names": self.buffers, "optimizer": None,
            "param_shapes": [collections.OrderedDict((n, self.whole(n).shape) for n in group) for group in groups],
            "frozen_param_shapes": collections.OrderedDict((n, self.whole(n).shape) for n in self.frozen), "shared_params": {},
            "frozen_param_fragments": collections.OrderedDict((n, self.whole(n)) for n in self.frozen),
            "lr_scheduler": None, "data_sampler": None, "random_ltd": None, "skipped_steps": self.state["skipped_steps"],
            "global_steps": self.state["global_steps"], "global_samples": self.state["global_samples"], "dp_world_size": world,
            "mp_world_size": 1, "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
            "ds_config": {"optimizer": {"type": "AdamW", "params": {"lr": 0.05}}, "zero_optimization": {"stage": 2}},
            "ds_version": "0.19.8",
            "note": "grüße", "pair": (1, "b"), "big": 2**70, "tensor": torch.arange(3), "theirs": Foreign()}

    def numbers(self, group):
        return {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False, "foreach": None, "params": group}


STATES = ("exp_avg", "exp_avg_sq")


def scaler():
    made = DynamicLossScaler()
    made.__dict__.update(cur_scale=512.0, dynamic=True, cur_iter=3, last_overflow_iter=-1, scale_factor=2.0, scale_window=2, min_scale=1,
                         delayed_shift=1, cur_hysteresis=1, consecutive_hysteresis=False, raise_error_at_min_scale=True, dtype=torch.float16)
    return made


def flat(run, group, state, alignment=0):
    """The vector of a group, and how many zeros stand behind each parameter."""
    parts, zeros = [], []
    for name in group:
        values = run.whole(name, state).reshape(-1)
        zeros.append(-values.numel() % alignment if alignment else 0)
        parts += [values, torch.zeros(zeros[-1])]
    return torch.cat(parts), zeros


def cut(values, world):
    padded = torch.cat([values, torch.zeros(-values.numel() % (2 * world))])
    return list(padded.chunk(world)), padded.numel() - values.numel()


def mappings(run, groups, rank, world, alignment):
    listed = []
    for group in groups:
        size, at, here = cut(flat(run, group, "param", alignment)[0], world)[0][0].numel(), 0, collections.OrderedDict()
        for name in group:
            n = run.whole(name).numel()
            begin, end = max(at, rank * size), min(at + n, (rank + 1) * size)
            if begin < end:
                here[name] = fragment_address(end - begin, begin - rank * size)
            at += n + (-n % alignment if alignment else 0)
        listed.append(here)
    return listed


def partitions(run, groups, world, stage=2, alignment=0, elastic=False, bf16=False):
    """Stages 1 and 2: the optimizer's dict of each rank."""
    dicts = []
    for rank in range(world):
        masters, states, paddings, zeros = [], [], [], []
        for group in groups:
            values, behind = flat(run, group, "param", alignment)
            parts, padding = cut(values, world)
            last = rank + 1 == world
            kept = parts[rank].numel() if bf16 or not last else parts[rank].numel() - padding
            # A slice of a padded storage, as DeepSpeed saves it.
            masters.append(parts[rank].clone()[:max(kept, 0)])
            paddings.append(padding if last else 0)
            zeros.append(behind)
            of_group = {"step": torch.tensor(float(run.updates))} if not elastic else {"step": run.updates}
            for state in STATES:
                part = cut(flat(run, group, state, alignment)[0], world)[0][rank].clone()
                of_group[state] = part[:max(kept, 0)] if elastic else part
            states.append(of_group)
        base = states if elastic else {"state": dict(enumerate(states)), "param_groups": [run.numbers([i]) for i in range(len(groups))]}
        made = {"clip_grad": 1.0, "base_optimizer_state": base, "single_partition_of_fp32_groups": masters, "group_paddings": paddings,
                "partition_count": [world] * len(groups), "ds_version": "0.19.8", "param_slice_mappings": mappings(run, groups, rank, world, alignment)}
        if not bf16:
            made |= {"loss_scaler": scaler(), "dynamic_loss_scale": True, "overflow": False, "zero_stage": ZeroStageEnum(stage)}
        if alignment:
            made["param_alignment_paddings"] = zeros
        dicts.append({"optimizer_state_dict": made, "ds_config": {}, "ds_version": "0.19.8"})
    return dicts


def stage3(run, sub_groups, world):
    def part(name, state, rank):
        values = run.whole(name, state).reshape(-1)
        size = -(-values.numel() // world)
        return torch.cat([values, torch.zeros(size * world - values.numel())])[rank * size:(rank + 1) * size]

    dicts = []
    for rank in range(world):
        states = {i: {"step": torch.tensor(float(run.updates)), **{s: torch.cat([part(n, s, rank) for n in group]) for s in STATES}}
                  for i, group in enumerate(sub_groups)}
        masters = [torch.nn.Parameter(torch.cat([part(n, "param", rank) for n in group])) for group in sub_groups]
        dicts.append({"optimizer_state_dict": {
            "zero_stage": ZeroStageEnum(3), "loss_scaler": scaler(), "dynamic_loss_scale": True, "overflow": False, "partition_count": world,
            "optimizer_state_dict": {"state": states, "param_groups": [run.numbers(list(range(len(sub_groups))))]},
            "fp32_flat_groups": masters}})
    return dicts, lambda rank: part("frozen", "param", rank)


class Folder:
    """A checkpoint of DeepSpeed that is being written."""

    def __init__(self, out, name, stream=False):
        self.root, self.tag, self.stream = out / name, f"global_step{RUN.state['global_steps']}", stream
        self.folder = self.root / self.tag
        self.folder.mkdir(parents=True)
        (self.root / "latest").write_text(self.tag)

    def save(self, name, value):
        torch.save(value, self.folder / name, _use_new_zipfile_serialization=not self.stream)

    def save_ranks(self, dicts, prefix=""):
        for rank, made in enumerate(dicts):
            self.save(f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", made)

    def save_model(self, model):
        self.save("mp_rank_00_model_states.pt", model)


def whole_states(run, names):
    return {i: {"step": torch.tensor(float(run.updates)), **{s: run.whole(n, s).clone() for s in STATES}} for i, n in enumerate(names)}


def write_flat(run, out, name, groups, world, **options):
    folder = Folder(out, name)
    folder.save_model(run.model(world, groups))
    folder.save_ranks(partitions(run, groups, world, **options), "bf16_" if options.get("bf16") else "")


def in_bf16(value):
    """Values of masters and moments as bf16_master_weights_and_grads and bf16_optimizer_states keep them."""
    if isinstance(value, dict):
        return {key: in_bf16(one) for key, one in value.items()}
    if isinstance(value, list):
        return [in_bf16(one) for one in value]
    return value.detach().bfloat16() if isinstance(value, torch.Tensor) and value.dim() > 0 else value


def write_low_precision(run, out, groups):
    """Masters and moments of 16 bits: at stage 2 of two processes, at stage 3 of three."""
    for name, world in (("low-flat-2", 2), ("low-stage3-3", 3)):
        folder = Folder(out, name)
        dicts, frozen = (partitions(run, groups, world), None) if world == 2 else stage3(run, groups, world)
        folder.save_ranks([in_bf16(made) for made in dicts])
        for rank in range(world):
            model = run.model(world, groups, torch.bfloat16)
            model["ds_config"] |= {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
            if frozen is None:
                folder.save_model(model)
                break
            for trained in [*run.trained, "frozen"]:
                model["module"][trained] = torch.zeros(0)
            model["frozen_param_fragments"] = {"frozen": frozen(rank)}
            folder.save(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", model)


def write_layouts(run, out):
    one, two = [run.trained], [["w1", "w2"], ["b1", "unused"]]
    for name, world, options in (("flat-1", 1, {}), ("flat-2", 2, {}), ("flat-3", 3, {"stage": 1}), ("aligned", 2, {"alignment": 4}),
                                 ("elastic", 2, {"elastic": True}), ("bf16", 2, {"bf16": True, "stage": 1}), ("wide", 24, {}),
                                 ("two-groups", 2, {})):
        write_flat(run, out, name, two if name == "two-groups" else one, world, **options)
    for name, world, groups in (("stage3-1", 1, one), ("stage3-3", 3, two)):
        folder = Folder(out, name)
        dicts, frozen = stage3(run, groups, world)
        folder.save_ranks(dicts)
        for rank in range(world):
            model = run.model(world, groups)
            for trained in [*run.trained, "frozen"]:
                model["module"][trained] = torch.zeros(0)
            model["frozen_param_fragments"] = {"frozen": frozen(rank)}
            folder.save(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", model)
    model = run.model(2, one)
    model |= {"param_shapes": None, "frozen_param_shapes": None, "frozen_param_fragments": None, "shared_params": None,
              "optimizer": {"state": whole_states(run, run.trained), "param_groups": [run.numbers([0, 1, 2, 3])]}}
    Folder(out, "stage0").save_model(model)
    model = copy.deepcopy(model)
    model["module"] = collections.OrderedDict((n, v.to(torch.bfloat16) if n != "buffer" else v) for n, v in model["module"].items())
    model["module"]["frozen"] = run.whole("frozen")
    model["optimizer"] = {"dynamic_loss_scale": False, "cur_scale": 1.0, "cur_iter": 3, "optimizer_state_dict": model["optimizer"],
                          "fp32_groups": [[run.whole(n).clone() for n in run.trained]]}
    Folder(out, "stage0-16bit").save_model(model)
    model = copy.deepcopy(model)
    states = {0: {"step": run.updates, **{s: flat(run, run.trained, s)[0] for s in STATES}}}
    model["optimizer"] = {"dynamic_loss_scale": False, "cur_scale": 1.0, "cur_iter": 3, "clip_grad": 1.0,
                          "optimizer_state_dict": {"state": states, "param_groups": [run.numbers([0])]},
                          "fp32_groups_flat": [flat(run, run.trained, "param")[0]]}
    Folder(out, "stage0-fused").save_model(model)
    write_low_precision(run, out, one)
    folder = Folder(out, "stream", stream=True)
    folder.save_model(run.model(2, one))
    folder.save_ranks(partitions(run, one, 2))
    folder = Folder(out, "universal")
    write_universal(run, folder, run.model(2, one))
    folder = Folder(out, "odd-client")
    folder.save_model(run.model(2, one) | odd_client())
    folder.save_ranks(partitions(run, one, 2))


def odd_client():
    """A client state that JSON does not hold, or that grows without end."""
    cycle = [0] * 20_000
    cycle[0] = cycle
    deep = torch.zeros((1,) * 200)
    return {"best": float("inf"), "losses": torch.tensor([1.0, float("nan")]), "keys": {(1, 2): 1, (3, 4): 2}, "cycle": cycle,
            "rows": torch.zeros(300_000_000, 0), "deep": deep, "last": 7}


def write_universal(run, folder, model):
    folder.save_model(model)
    for name in run.trained:
        (folder.folder / "zero" / name).mkdir(parents=True)
        for state, file in (("param", "fp32"), *((s, s) for s in STATES)):
            folder.save(f"zero/{name}/{file}.pt", {"cat_dim": 0, "param": run.whole(name, state).clone()})
        folder.save(f"zero/{name}/step.pt", torch.tensor(float(run.updates)))
    folder.save("zero/optimizer_state.pt", {"loss_scaler": scaler(), "zero_stage": ZeroStageEnum(2), "param_groups": [run.numbers([0])]})


class Runs:
    """Whoever unpickles it calls print, which a reader never does."""

    def __reduce__(self):
        return print, ("the pickle was run",)


CUT_OFF = "it is not a file of torch.save, or was cut off"


def write_damaged(run, out):
    messages = {}
    model0, dicts0 = run.model(2, [run.trained]), partitions(run, [run.trained], 2)

    def damaged(name, message, change=lambda model, dicts: None, after=lambda folder: None):
        model, dicts = copy.deepcopy(model0), copy.deepcopy(dicts0)
        change(model, dicts)
        folder = Folder(out, name)
        folder.save_model(model)
        folder.save_ranks(dicts)
        after(folder.folder)
        messages[name] = message

    def model_member(key, value):
        return lambda model, dicts: model.__setitem__(key, value)

    def optimizer_member(key, value, rank=0):
        return lambda model, dicts: dicts[rank]["optimizer_state_dict"].__setitem__(key, value)

    def state_member(key, value, rank=0):
        return lambda model, dicts: dicts[rank]["optimizer_state_dict"]["base_optimizer_state"]["state"][0].__setitem__(key, value)

    rank1, model_file = "zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"
    damaged("counter-negative", "global_steps: is -5, and an integer from 0 to 1000000000000 is expected.", model_member("global_steps", -5))
    damaged("counter-called", "global_steps: is an object of __builtin__.print, and an integer", model_member("global_steps", Runs()))
    damaged("module-called", "module: is an object of __builtin__.print, and a dict is expected.", model_member("module", Runs()))
    damaged("counter-missing", "global_steps: is missing.", lambda model, dicts: model.pop("global_steps"))
    damaged("tensor-parallel", "mp_world_size: is 2: the run had tensor or pipeline parallelism", model_member("mp_world_size", 2))
    damaged("world", "there are 2 files *_optim_states.pt, and dp_world_size of the model's file is 4.", model_member("dp_world_size", 4))
    damaged("shared-unknown", "'nobody' is not a parameter of the checkpoint", model_member("shared_params", {"alias": "nobody"}))
    damaged("partition-count", "partition_count[0]: is 3, and dp_world_size of the model's file is 2", optimizer_member("partition_count", [3]))
    damaged("stage", "zero_stage: is 7, and an integer from 1 to 3 is expected.", optimizer_member("zero_stage", 7))
    damaged("padding", "group_paddings[0]: is 1152921504606846976, and 3 is expected.", optimizer_member("group_paddings", [2**60], 1))
    damaged("alignment", "param_alignment_paddings[0][0]: is 1152921504606846976", optimizer_member("param_alignment_paddings", [[2**60, 0, 0, 0]]))
    damaged("partition-short", "single_partition_of_fp32_groups[0]: has 19 elements, and rank 0's partition has 3.",
            optimizer_member("single_partition_of_fp32_groups", [torch.zeros(3)]))
    damaged("partitions-few", "with it the ranks have 24 elements, and the parameters of param_shapes of the model's file have 41.",
            optimizer_member("single_partition_of_fp32_groups", [torch.zeros(2)], 1))
    damaged("partition-half", "holds values of Half, and fp32 master weights are expected.",
            lambda model, dicts: dicts[0]["optimizer_state_dict"].__setitem__(
                "single_partition_of_fp32_groups", [v.half() for v in dicts[0]["optimizer_state_dict"]["single_partition_of_fp32_groups"]]))
    damaged("states-none", "after 2 updates it has no states of the optimizer 'AdamW'",
            lambda model, dicts: [d["optimizer_state_dict"]["base_optimizer_state"]["state"].clear() for d in dicts])
    damaged("state-short", "exp_avg: has 1 elements, and 'w1' lies at 0 to 22 of 22.", state_member("exp_avg", torch.zeros(1)))
    damaged("state-integers", "exp_avg: is a tensor, and a tensor of floating-point numbers is expected.",
            state_member("exp_avg", torch.zeros(22, dtype=torch.int64)))
    damaged("step-nan", "step: is nan, and a finite number is expected.", state_member("step", torch.tensor(float("nan"))))
    damaged("step-negative", "the optimizer has counted -3 updates, and the run has made 2",
            lambda model, dicts: [state_member("step", -3, rank)(model, dicts) for rank in (0, 1)])
    damaged("steps-mixed", "step: is not the same in the files of all ranks", state_member("step", torch.tensor(3.0), 1))
    damaged("scale", "loss_scaler.cur_scale: is -2, and a positive number is expected.",
            lambda model, dicts: dicts[0]["optimizer_state_dict"]["loss_scaler"].__dict__.update(cur_scale=-2))
    damaged("rank-twice", "w1.numel: is 22, and rank 1 has 2 elements of 'w1'. The file is a copy of another rank's, or damaged.",
            after=lambda folder: shutil.copy(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt", folder / rank1))
    damaged("rank-missing", "there are 1 files *_optim_states.pt", after=lambda folder: (folder / rank1).unlink())
    damaged("first-rank-missing", "of rank 0 is missing: 'zero_pp_rank_1_mp_rank_00_optim_states.pt' is there.",
            after=lambda folder: (folder / rank1.replace("_1_", "_0_")).unlink())
    damaged("model-missing", "it has no file *_model_states.pt", after=lambda folder: (folder / model_file).unlink())
    damaged("layers", "'layer_00-model_states.pt' is a file of pipeline parallelism",
            after=lambda folder: (folder / "layer_00-model_states.pt").write_bytes(b""))
    damaged("model-parallel", "'mp_rank_01_model_states.pt' is a file of tensor or pipeline parallelism",
            after=lambda folder: shutil.copy(folder / model_file, folder / "mp_rank_01_model_states.pt"))
    damaged("experts", "is a file of a mixture of experts",
            after=lambda folder: (folder / "expp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b""))
    damaged("cut", CUT_OFF, after=lambda folder: os.truncate(folder / rank1, os.path.getsize(folder / rank1) * 2 // 3))
    damaged("empty", "it is empty: it was cut off.", after=lambda folder: (folder / rank1).write_bytes(b""))
    damaged("flipped", "it is damaged: its storage does not fit its checksum.", after=lambda folder: flip(folder / rank1))
    folder = Folder(out, "universal-missing")
    write_universal(run, folder, copy.deepcopy(model0))
    (folder.folder / "zero/b1/exp_avg.pt").unlink()
    messages["universal-missing"] = "zero/b1': it has not the files of 'w1', fp32.pt among them: some are missing."
    folder = Folder(out, "universal-outside")
    shapes = collections.OrderedDict({"../../w1": torch.Size([6, 4])})
    write_universal(run, folder, copy.deepcopy(model0) | {"param_shapes": [shapes]})
    messages["universal-outside"] = "'../../w1' cannot be a parameter: it is not the name of a folder of zero/."
    (out / "messages.json").write_text(json.dumps(messages))


def flip(path):
    """One bit of the first tensor's values."""
    data = bytearray(path.read_bytes())
    header = next(one for one in zipfile.ZipFile(path).infolist() if one.filename.endswith("/data/0")).header_offset
    name, extra = struct.unpack("<HH", data[header + 26:header + 30])
    data[header + 30 + name + extra + 1] ^= 1
    path.write_bytes(data)


if __name__ == "__main__":
    RUN = Run(pathlib.Path(sys.argv[1]) / sys.argv[2])
    OUT = pathlib.Path(sys.argv[3])
    if len(sys.argv) > 4:
        write_flat(RUN, OUT, sys.argv[4], [RUN.trained], int(sys.argv[4].removeprefix("flat-")))
    else:
        write_layouts(RUN, OUT)
        write_damaged(RUN, OUT / "damaged")
