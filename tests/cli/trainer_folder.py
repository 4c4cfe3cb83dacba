"""Makes of a checkpoint of Capstan what transformers' Trainer with DeepSpeed leaves: SOURCE TAG HF OUT.

HF is the checkpoint's export as a folder of transformers. OUT gets its files, trainer_state.json, and the checkpoint of
DeepSpeed in two ranks at stage 2, whose tensors have the names and forms that the folder's weights have.
"""

import json
import pathlib
import shutil
import struct
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "core/checkpoint/deepspeed"))
import write_checkpoints as deepspeed  # noqa: E402


def weights(file):
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    for name, facts in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = facts["data_offsets"]
            values = torch.frombuffer(bytearray(data[8 + length + begin:8 + length + end]), dtype=torch.float32)
            yield name, values.reshape(facts["shape"])


def find(run, values):
    """The parameter that has these values, and whether it lies the other way round there."""
    for name in run.trained:
        whole = run.whole(name)
        if torch.equal(whole, values):
            return name, False
        if values.dim() == 2 and torch.equal(whole.T, values):
            return name, True
    sys.exit("the checkpoint has no parameter with the values of the export")


def main():
    source, tag, hf, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    run = deepspeed.Run(source / tag)
    tensors, trained = {}, []
    for name, values in weights(hf / "model.safetensors"):
        own, turned = find(run, values)
        trained.append(name)
        for state in ("param", "step", *deepspeed.STATES):
            whole = run.whole(own, state)
            tensors[name, state] = whole.T.contiguous() if turned and whole.dim() == 2 else whole
    run.tensors, run.trained, run.frozen, run.buffers = tensors, trained, [], []
    shutil.copytree(hf, out)
    deepspeed.RUN = run
    deepspeed.write_flat(run, out.parent, out.name, [trained], 2)
    (out / "trainer_state.json").write_text('{"epoch": 0.25, "global_step": %d, "log_history": [{"loss": NaN}]}' % run.updates)


if __name__ == "__main__":
    main()
