"""Runs a script that looks at the tensors of a .pt file: pt_reader.py own|torch FILE SCRIPT.

The script finds a dictionary `d` of Tensor. "torch" reads with torch.load(weights_only=True); "own" needs the standard
library only: it allows the pickle opcodes and globals that torch.load(weights_only=True) allows, and no others.
"""

import io
import pickle
import pickletools
import struct
import sys
import zipfile
from collections import OrderedDict, namedtuple

Tensor = namedtuple("Tensor", "dtype shape values storage storage_bytes requires_grad")

# torch/_weights_only_unpickler.py
OPCODES = set("""APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT
    EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE
    SETITEM SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3""".split())
STORAGES = {"FloatStorage": ("float32", "f"), "DoubleStorage": ("float64", "d"), "LongStorage": ("int64", "q"),
            "IntStorage": ("int32", "i"), "BFloat16Storage": ("bfloat16", "H"), "HalfStorage": ("float16", "e"),
            "BoolStorage": ("bool", "?"), "ByteStorage": ("uint8", "B")}


def nested(flat, shape, strides, offset):
    if not shape:
        return flat[offset]
    return [nested(flat, shape[1:], strides[1:], offset + i * strides[0]) for i in range(shape[0])]


class OwnUnpickler(pickle.Unpickler):
    def __init__(self, data, archive, prefix):
        super().__init__(data)
        self.archive, self.prefix = archive, prefix

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.rebuild
        if module == "torch" and name in STORAGES:
            return name
        raise pickle.UnpicklingError(f"global {module}.{name}")

    def persistent_load(self, reference):
        kind, storage_type, key, location, count = reference
        assert (kind, location) == ("storage", "cpu"), reference
        dtype, letter = STORAGES[storage_type]
        data = self.archive.read(f"{self.prefix}/data/{key}")
        assert len(data) == count * struct.calcsize("<" + letter), reference
        flat = struct.unpack(f"<{count}{letter}", data)
        if dtype == "bfloat16":
            flat = struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(word << 16 for word in flat)))
        return dtype, key, len(data), flat

    @staticmethod
    def rebuild(storage, offset, shape, strides, requires_grad, hooks, metadata=None):
        dtype, key, storage_bytes, flat = storage
        values = nested(flat, shape, strides, offset)
        return Tensor(dtype, tuple(shape), values, key, storage_bytes, requires_grad)


def read_own(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        prefix = archive.namelist()[0].split("/")[0]
        assert archive.read(f"{prefix}/byteorder") == b"little"
        pickled = archive.read(f"{prefix}/data.pkl")
        for opcode, _, _ in pickletools.genops(pickled):
            assert opcode.name in OPCODES, opcode.name
        return OwnUnpickler(io.BytesIO(pickled), archive, prefix).load()


def read_torch(path):
    import torch

    return {name: Tensor(str(t.dtype).removeprefix("torch."), tuple(t.shape), t.tolist(), t.data_ptr(),
                         t.untyped_storage().nbytes(), t.requires_grad)
            for name, t in torch.load(path, weights_only=True).items()}


if __name__ == "__main__":
    reader, file, script = sys.argv[1:]
    d = {"own": read_own, "torch": read_torch}[reader](file)
    with open(script) as lines:
        exec(lines.read())
