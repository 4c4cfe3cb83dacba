"""Writes one checkpoint of Capstan by torch.distributed.checkpoint in two processes, as a run of FSDP2 does: SOURCE TAG OUT.

OUT/dcp/ has parameters and states in shards of rows, the moments of w1 in shards of columns, and b1 whole in each process. OUT/unnamed/ has the states by numbers, as an optimizer's own state_dict() does. OUT/left_out/ is that one, with a moment damaged.
OUT/damaged/<name>/ are damaged ones, and OUT/damaged/messages.json has for each the sentence that a reader must give.
"""

import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import sys
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "deepspeed"))
from write_checkpoints import STATES, Run  # noqa: E402

WORLD = 2


class Odd:
    """An object of a program."""


def state_dict(run, mesh, named):
    def sharded(name, values, dimension=0):
        kind = Replicate() if values.shape[0] < WORLD or name == "b1" else Shard(dimension)
        return distribute_tensor(values.clone(), mesh, [kind])

    names = [*run.trained, *run.frozen]
    model = {name: sharded(name, run.whole(name)) for name in names}
    model.update((name, run.whole(name, "buffer")) for name in run.buffers)
    keys = {name: name if named else number for number, name in enumerate(run.trained)}
    states = {keys[name]: {"step": run.whole(name, "step")[0].float(),
                          **{s: sharded(name, run.whole(name, s), int(name == "w1")) for s in STATES}}
              for name in run.trained}
    groups = [{"lr": 0.05, "betas": (0.9, 0.999), "weight_decay": 0.01, "foreach": None, "params": list(keys.values())}]
    return {"model": model, "optimizer": {"state": states, "param_groups": groups}, "step": 2, "note": "grüße", "odd": Odd()}


def save(rank, run, out):
    dist.init_process_group("gloo", store=dist.FileStore(str(out / "store"), WORLD), rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    dcp.save(state_dict(run, mesh, named=True), checkpoint_id=str(out / "dcp"))
    dcp.save(state_dict(run, mesh, named=False), checkpoint_id=str(out / "unnamed"))
    dist.destroy_process_group()


def changed(out, name, change):
    """A copy of the checkpoint whose Metadata `change` has worked on."""
    folder = out / "damaged" / name
    shutil.copytree(out / "dcp", folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    return folder


def flip(folder, end):
    """Changes a byte of the first tensor whose name has that end."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    info = next(info for key, info in metadata.storage_data.items() if key.fqn.endswith(end))
    file = folder / info.relative_path
    data = bytearray(file.read_bytes())
    item = zipfile.ZipFile(io.BytesIO(data[info.offset:info.offset + info.length]))
    header = info.offset + next(one for one in item.infolist() if one.filename.endswith("/data/0")).header_offset
    name, extra = struct.unpack("<HH", data[header + 26:header + 30])
    data[header + 30 + name + extra] ^= 1
    file.write_bytes(bytes(data))


def damage(out):
    messages, key = {}, "model.w1"

    def first(metadata):
        return next(k for k in metadata.storage_data if k.fqn == key)

    def outside(metadata):
        metadata.storage_data[first(metadata)].relative_path = "../dcp/__0_0.distcp"

    def beyond(metadata):
        metadata.storage_data[first(metadata)].offset = 10**9

    def lost(metadata):
        del metadata.storage_data[first(metadata)]

    def fewer(metadata):
        metadata.state_dict_metadata[key].chunks = metadata.state_dict_metadata[key].chunks[:1]

    def twice(metadata):
        chunks = metadata.state_dict_metadata[key].chunks
        metadata.state_dict_metadata[key].chunks = [chunks[0], chunks[0]]

    def pathless(metadata):
        metadata.planner_data[key] = ()

    def huge(metadata):
        metadata.state_dict_metadata[key].chunks[0].offsets = torch.Size([2**40, 0])

    def other(metadata):
        metadata.storage_data[first(metadata)].offset = next(
            info.offset for k, info in metadata.storage_data.items()
            if k.fqn != key and info.relative_path == metadata.storage_data[first(metadata)].relative_path)

    for name, change, message in (("outside", outside, "the name of a file in the folder is expected"),
                                  ("beyond", beyond, "are beyond its end"),
                                  ("lost", lost, "storage_data does not tell where its values stand"),
                                  ("fewer", fewer, "the chunks of 'model.w1' have"),
                                  ("twice", twice, "of 'model.w1' is in two chunks, and others are in none"),
                                  ("pathless", pathless, "is not the path of an entry"),
                                  ("huge", huge, "is a chunk that lies outside of its tensor"),
                                  ("other", other, "distcp', item at byte")):
        changed(out, name, change)
        messages[name] = message
    cut = changed(out, "cut", lambda metadata: None)
    file = cut / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:500])
    messages["cut"] = "__1_0.distcp'"
    gone = changed(out, "gone", lambda metadata: None)
    (gone / "__1_0.distcp").unlink()
    messages["gone"] = "__1_0.distcp': it is missing."
    flip(changed(out, "flipped", lambda metadata: None), key)
    shutil.copytree(out / "unnamed", out / "left_out")
    flip(out / "left_out", ".exp_avg")
    messages["flipped"] = "it is damaged: its storage does not fit its checksum"
    call = changed(out, "call", lambda metadata: None)
    (call / ".metadata").write_bytes(b"cbuiltins\nprint\n(X\x03\x00\x00\x00RUNtR.")
    messages["call"] = "is an object of builtins.print, and a dict is expected"
    empty = changed(out, "empty", lambda metadata: None)
    (empty / ".metadata").write_bytes(b"")
    messages["empty"] = ".metadata': it is empty"
    (out / "damaged" / "messages.json").write_text(json.dumps(messages))


def main():
    source, tag, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    run = Run(source / tag)
    child = os.fork()
    save(1 if child == 0 else 0, run, out)
    if child == 0:
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the second process has failed")
    damage(out)


if __name__ == "__main__":
    main()
