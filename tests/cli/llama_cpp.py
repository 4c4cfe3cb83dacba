"""llama.cpp by ctypes, out of the package xllamacpp."""
import ctypes
import importlib.util
import os

import numpy as np


class Settings(ctypes.Structure):
    """Room for any settings: they are passed by value, and only their defaults are wanted."""

    _fields_ = [("bytes", ctypes.c_char * 1024)]


SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def library():
    folder = os.path.dirname(importlib.util.find_spec("xllamacpp").origin)
    lib = ctypes.CDLL(os.path.join(folder, "xllamacpp.abi3.so"), mode=os.RTLD_LAZY)
    for name in ("llama_model_default_params", "llama_context_default_params", "llama_batch_get_one"):
        getattr(lib, name).restype = Settings
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "llama_get_memory"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_model_chat_template.restype = ctypes.c_char_p
    lib.llama_log_set(SILENT, None)
    lib.llama_backend_init()
    return lib


class LlamaCpp:
    lib = None

    def __init__(self, file):
        LlamaCpp.lib = LlamaCpp.lib or library()
        self.model = ctypes.c_void_p(self.lib.llama_model_load_from_file(os.fsencode(file), self.lib.llama_model_default_params()))
        assert self.model, f"llama.cpp does not load {file}"
        self.vocab = ctypes.c_void_p(self.lib.llama_model_get_vocab(self.model))
        self.size = self.lib.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text, special=True):
        """The tokens of a text, with those around it; special tokens that are written in it are found."""
        room = (ctypes.c_int32 * (len(text.encode()) + 16))()
        data = text.encode()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), room, len(room), ctypes.c_bool(special), ctypes.c_bool(True))
        assert count >= 0, text
        return list(room[:count])

    def chat_template(self):
        text = self.lib.llama_model_chat_template(self.model, None)
        return None if text is None else text.decode()

    def logits(self, tokens):
        """Of each position, one token at a time in a context of its own."""
        context = ctypes.c_void_p(self.lib.llama_init_from_model(self.model, self.lib.llama_context_default_params()))
        assert context, "llama.cpp makes no context"
        rows = []
        for token in tokens:
            rows.append(self._next(context, token))
        self.lib.llama_free(context)
        return np.stack(rows)

    def _next(self, context, token):
        batch = self.lib.llama_batch_get_one((ctypes.c_int32 * 1)(token), ctypes.c_int32(1))
        assert self.lib.llama_decode(context, batch) == 0
        found = self.lib.llama_get_logits_ith(context, ctypes.c_int32(-1))
        return np.ctypeslib.as_array(found, (self.size,)).astype(np.float64)

    def greedy(self, tokens, count):
        context = ctypes.c_void_p(self.lib.llama_init_from_model(self.model, self.lib.llama_context_default_params()))
        made, row = [], None
        for token in tokens:
            row = self._next(context, token)
        for _ in range(count):
            made.append(int(row.argmax()))
            row = self._next(context, made[-1])
        self.lib.llama_free(context)
        return made
