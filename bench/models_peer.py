"""The other programs of bench/models, each in a process of its own on one thread:

    models_peer.py make FOLDER          a model of SmolLM2-135M's shape with random weights, and FOLDER/model-f32.gguf
    models_peer.py small FOLDER         one whose weights are next to nothing
    models_peer.py train FOLDER STEPS ROWS TOKENS        transformers and torch.optim.AdamW
    models_peer.py decode FOLDER IDS NEW                 transformers.generate with its cache
    models_peer.py llama FOLDER IDS NEW                  llama.cpp
    models_peer.py bandwidth FOLDER                      the bytes of memory that a CPU second reads

decode and llama print the CPU seconds of a token behind the prompt, and the new ids.
"""
import ctypes
import importlib.util
import os
import sys
import time

import torch

SHAPE = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
             num_key_value_heads=3, max_position_embeddings=2048, rope_theta=100000.0, tie_word_embeddings=True,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)  # fmt: skip


def small(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
                 num_key_value_heads=1)  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**{**SHAPE, **sizes})).save_pretrained(folder)


def make(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with torch.no_grad():  # else each token is the one before it
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(8)
            layer.self_attn.o_proj.weight.mul_(8)
    model.save_pretrained(folder)
    write_gguf(model, os.path.join(folder, "model-f32.gguf"))


def rotated(weight, heads):
    """llama.cpp turns neighbouring dimensions together, transformers those half a head apart."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model, path):
    import gguf

    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}  # fmt: skip
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        else:
            layer, module = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            if module in heads:
                values = rotated(values, heads[module])
            writer.add_tensor(f"blk.{layer}.{names[module]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train(folder, steps, rows, tokens):
    model = loaded(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.arange(int(rows) * int(tokens)).remainder(256).view(int(rows), int(tokens))
    for _ in range(int(steps)):
        model(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def decode(folder, ids, new):
    model = loaded(folder).eval()
    prompt = torch.tensor([[int(one) for one in ids.split(",")]])

    def continued(count):
        begun = time.process_time()
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False,
                                pad_token_id=0, eos_token_id=None)  # fmt: skip
        return time.process_time() - begun, tokens[0, prompt.size(1):].tolist()

    with torch.inference_mode():
        continued(2)
        first, (few, tokens) = continued(1)[0], continued(int(new))
    print((few - first) / (int(new) - 1), ",".join(map(str, tokens)))


class Settings(ctypes.Structure):
    """Room for any settings: they are passed by value, and only their defaults are wanted."""

    _fields_ = [("bytes", ctypes.c_char * 1024)]


def llama(folder, ids, new):
    import numpy as np

    of_package = os.path.dirname(importlib.util.find_spec("xllamacpp").origin)
    lib = ctypes.CDLL(os.path.join(of_package, "xllamacpp.abi3.so"), mode=os.RTLD_LAZY)
    for name in ("llama_model_default_params", "llama_context_default_params", "llama_batch_get_one"):
        getattr(lib, name).restype = Settings
    for name in ("llama_model_load_from_file", "llama_init_from_model"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_backend_init()
    file = os.fsencode(os.path.join(folder, "model-f32.gguf"))
    model = ctypes.c_void_p(lib.llama_model_load_from_file(file, lib.llama_model_default_params()))
    assert model, "llama.cpp does not load the file"
    context = ctypes.c_void_p(lib.llama_init_from_model(model, lib.llama_context_default_params()))
    assert context, "llama.cpp makes no context"
    lib.llama_set_n_threads(context, 1, 1)

    def following(tokens):
        given = (ctypes.c_int32 * len(tokens))(*tokens)  # the batch points to it
        batch = lib.llama_batch_get_one(given, ctypes.c_int32(len(tokens)))
        assert lib.llama_decode(context, batch) == 0
        logits = lib.llama_get_logits_ith(context, ctypes.c_int32(-1))
        return int(np.ctypeslib.as_array(logits, (SHAPE["vocab_size"],)).argmax())

    found = [following([int(one) for one in ids.split(",")])]
    begun = time.process_time()
    for _ in range(int(new) - 1):
        found.append(following([found[-1]]))
    print((time.process_time() - begun) / (int(new) - 1), ",".join(map(str, found)))


def bandwidth(folder):
    """Prints the bytes a CPU second that one thread reads of memory, in a sum over as much of it as the weights take."""
    numbers = torch.ones(os.path.getsize(os.path.join(folder, "model.safetensors")) // 4)
    seconds = []
    for _ in range(6):
        begun = time.process_time()
        numbers.sum()
        seconds.append(time.process_time() - begun)
    print(numbers.nbytes / min(seconds))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"bandwidth": bandwidth, "make": make, "small": small, "train": train, "decode": decode, "llama": llama}[sys.argv[1]](*sys.argv[2:])
