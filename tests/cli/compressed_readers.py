"""What other programs read of an export with --compressed, against the formulas of quantisation in numpy.

  compressed_readers.py packed FILE MASTERS QUANTISER...    every weight of a safetensors file, bit for bit
  compressed_readers.py gguf FILE MASTERS QUANTISER...      every tensor of a GGUF file, bit for bit
  compressed_readers.py hf FOLDER GPT2 TEXT QUANTISER...    logits of transformers; prints the mean loss over TEXT
  compressed_readers.py llama FILE TEXT                     prints the mean loss of llama.cpp over TEXT
  compressed_readers.py opens FOLDER TEXT                   prints that of transformers over TEXT

Several of them in one call stand one behind the other with ";" in between.

MASTERS and GPT2 are exports without --compressed; TEXT is a file of bytes, one token each. QUANTISER: PATTERN BITS GROUPS
symmetric|asymmetric exact|half, of the weights whose names here contain PATTERN ("" for all matrices but embeddings).
"""
import json
import sys

import numpy as np


def quantised(x, bits, groups, kind, half):
    """The values (code - zero point) * scale, rounded once in float32."""
    w = x.reshape(groups, -1).astype(np.float32)
    one = np.float32
    if bits == 1:
        scale = np.abs(w).astype(np.float64).mean(1, keepdims=True).astype(one)
        return (np.sign(w) * scale).reshape(x.shape)
    if bits == 2:
        size = np.abs(w).astype(np.float64)
        above = size > (0.7 * size.mean(1, keepdims=True)).astype(one)
        scale = (np.where(above, size, 0).sum(1, keepdims=True) / above.sum(1, keepdims=True)).astype(one)
        return np.where(above, np.sign(w) * scale, 0).astype(one).reshape(x.shape)
    low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    if kind == "symmetric":
        scale = np.abs(w).max(1, keepdims=True) / one(2 ** (bits - 1))
        if half:
            scale = scale.astype(np.float16).astype(one)
        return (np.clip(np.round(w / scale), low, high).astype(one) * scale).reshape(x.shape)
    scale = (w.max(1, keepdims=True) - w.min(1, keepdims=True)) / one(2**bits)
    first = np.round(w.min(1, keepdims=True) / scale)
    code = np.clip(np.round((w - first * scale) / scale), 0, 2**bits - 1)
    return ((code + first).astype(one) * scale).reshape(x.shape)


class Quantiser:
    def __init__(self, pattern, bits, groups, kind, half):
        self.pattern, self.bits, self.groups, self.kind, self.half = pattern, int(bits), int(groups), kind, half == "half"

    def takes(self, name):
        return name.endswith(".weight") and self.pattern in name and "emb" not in name and "ln" not in name

    def __call__(self, x):
        return quantised(x, self.bits, self.groups, self.kind, self.half)


def same(name, found, expected):
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    assert np.array_equal(found, expected), (name, np.abs(found - expected).max(), np.abs(expected).max())


def packed(file, masters, quantiser):
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from safetensors import safe_open
    from safetensors.numpy import load_file

    masters, seen = load_file(masters), 0
    with safe_open(file, "pt") as f:
        groups = json.loads(f.metadata()["quantization_config"])["config_groups"].values()
        schemes = {target: group["weights"] for group in groups for target in group["targets"]}
        names = set(f.keys())
        for name, master in masters.items():
            if not quantiser.takes(name):
                same(name, f.get_tensor(name).numpy(), master)
                continue
            scheme = schemes[name.rsplit(".", 1)[0]]
            assert scheme["num_bits"] == quantiser.bits, scheme
            shape = f.get_tensor(name + "_shape").tolist()
            matrix = [shape[0], int(np.prod(shape[1:]))]
            codes = unpack_from_int32(f.get_tensor(name + "_packed"), scheme["num_bits"], matrix).numpy()
            scale = f.get_tensor(name + "_scale").numpy()
            zero = np.zeros_like(scale)
            if not scheme["symmetric"]:
                zero = f.get_tensor(name + "_zero_point")
                if zero.dtype.itemsize == 4 and not zero.dtype.is_floating_point:
                    zero = unpack_from_int32(zero, scheme["num_bits"], [shape[0], scale.shape[1]], packed_dim=0)
                zero = zero.numpy().astype(np.float32)
            if scale.ndim == 2:
                scale, zero = (np.repeat(t, matrix[1] // t.shape[1], axis=1) for t in (scale, zero))
            values = (codes.astype(np.float32) - zero) * scale
            same(name, values.reshape(shape), quantiser(master))
            seen += 1
    print(seen)


# Parameters here, by the names of llama.cpp.
GGUF = {"token_embd": "tok_emb", "position_embd": "pos_emb", "output_norm": "ln_f", "output": "head"}
GGUF_BLOCK = {"attn_norm": "ln1", "attn_qkv": "attn.qkv", "attn_output": "attn.proj", "ffn_norm": "ln2",
              "ffn_up": "mlp.fc", "ffn_down": "mlp.proj"}  # fmt: skip


def gguf(file, masters, quantiser):
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import load_file

    masters, seen = load_file(masters), 0
    for tensor in GGUFReader(file).tensors:
        name, end = tensor.name.rsplit(".", 1)
        block = name.split(".")
        ours = f"blocks.{block[1]}.{GGUF_BLOCK[block[2]]}" if block[0] == "blk" else GGUF[name]
        master = masters.pop(f"{ours}.{end}")
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(master.shape)
        if quantiser.takes(f"{ours}.{end}"):
            assert tensor.tensor_type.name == {4: "Q4_0", 8: "Q8_0"}[quantiser.bits], tensor.tensor_type
            # The codes belong to the scale that was trained, the values to the scale that float16 holds.
            w = master.reshape(quantiser.groups, -1)
            scale = np.abs(w).max(1, keepdims=True) / np.float32(2 ** (quantiser.bits - 1))
            half = scale.astype(np.float16).astype(np.float32)
            code = np.round(quantised(w, quantiser.bits, quantiser.groups, "symmetric", quantiser.half)
                            / (half if quantiser.half else scale))  # fmt: skip
            same(tensor.name, values, (code * half).reshape(master.shape))
            seen += 1
        else:
            same(tensor.name, values, master)
    assert not masters, masters.keys()
    print(seen)


def hf(folder, dense, text, quantiser):
    import torch
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plain = GPT2LMHeadModel.from_pretrained(dense).eval()
    theirs = {"c_attn": "attn.qkv", "c_fc": "mlp.fc", "c_proj": "proj", "lm_head": "head"}
    seen = 0
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            module = name.split(".")[-2]
            ours = theirs.get(module, "emb") + ".weight"
            if module == "c_proj":
                ours = ("mlp." if ".mlp." in name else "attn.") + ours
            if not name.endswith(".weight") or not quantiser.takes(ours):
                continue
            turned = parameter if module == "lm_head" else parameter.t()
            turned.copy_(torch.from_numpy(quantiser(turned.numpy())))
            seen += 1
        tokens = torch.tensor([list(open(text, "rb").read())])
        logits = model(tokens[:, :-1]).logits[0]
        expected = plain(tokens[:, :-1]).logits[0]
    assert seen > 0
    difference, largest = (logits - expected).abs().max().item(), expected.abs().max().item()
    assert difference <= 1e-5 * largest, (difference, largest)
    print(f"{torch.nn.functional.cross_entropy(logits.double(), tokens[0, 1:]).item():.6f}")


def opens(folder, text):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([list(open(text, "rb").read())])
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits[0]
    print(f"{torch.nn.functional.cross_entropy(logits.double(), tokens[0, 1:]).item():.6f}")


def llama(file, text):
    import ctypes
    import importlib.util
    import os

    class Settings(ctypes.Structure):
        """Room for any settings: they are passed by value, and only their defaults are wanted."""

        _fields_ = [("bytes", ctypes.c_char * 1024)]

    folder = os.path.dirname(importlib.util.find_spec("xllamacpp").origin)
    lib = ctypes.CDLL(os.path.join(folder, "xllamacpp.abi3.so"), mode=os.RTLD_LAZY)
    for name in ("llama_model_default_params", "llama_context_default_params", "llama_batch_get_one"):
        getattr(lib, name).restype = Settings
    for name in ("llama_model_load_from_file", "llama_init_from_model"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(os.fsencode(file), lib.llama_model_default_params())
    assert model, "llama.cpp does not load the file"
    context = lib.llama_init_from_model(ctypes.c_void_p(model), lib.llama_context_default_params())
    assert context, "llama.cpp makes no context"
    tokens, total = list(open(text, "rb").read()), 0.0
    for token, following in zip(tokens, tokens[1:]):
        batch = lib.llama_batch_get_one((ctypes.c_int32 * 1)(token), ctypes.c_int32(1))
        assert lib.llama_decode(ctypes.c_void_p(context), batch) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(ctypes.c_void_p(context), ctypes.c_int32(-1)), (256,))
        logits = logits.astype(np.float64)
        total += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[following]
    print(f"{total / (len(tokens) - 1):.6f}")


jobs = [[]]
for word in sys.argv[1:]:
    jobs.append([]) if word == ";" else jobs[-1].append(word)
for what, *arguments in jobs:
    if what in ("llama", "opens"):
        {"llama": llama, "opens": opens}[what](*arguments)
    else:
        {"packed": packed, "gguf": gguf, "hf": hf}[what](*arguments[:-5], Quantiser(*arguments[-5:]))
