"""Models of transformers and llama.cpp that capstan trains, and what became of them.

  pretrained_models.py make FOLDER     writes FOLDER/llama, FOLDER/qwen2 (bfloat16, in several files) and FOLDER/mixed.gguf
                                       (tensors of all types that capstan reads, with a tokenizer)
  pretrained_models.py check FOLDER    looks at FOLDER/llama_out, qwen2_out, mixed_out, mixed_f32.gguf and mixed_q8.gguf, which
                                       capstan has written; prints the mean loss of llama_out over FOLDER/text.txt
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}  # fmt: skip


def make_folder(folder, name, dtype, shard, **more):
    torch.manual_seed(1)
    config = AutoConfig.for_model(name, **{**SIZE, **more})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder, max_shard_size=shard)


def gguf_name(name):
    for begin, there in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")):
        name = name.replace(begin, there)
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        module, end = rest.rsplit(".", 1)
        name = f"blk.{layer}.{NAMES[module]}.{end}"
    return name


def pairs(rows, heads):
    """Rows of halves of heads as rows of neighbours, as convert_hf_to_gguf.py of llama.cpp permutes them."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def make_gguf(file):
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE), dtype=torch.float32)
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(320)
    writer.add_name("a small one")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(320)])
    writer.add_token_scores([float(-i) for i in range(320)])
    writer.add_token_types([1] * 320)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for i, (name, values) in enumerate(model.state_dict().items()):
        values = values.numpy()
        for module, heads in (("q_proj", 4), ("k_proj", 2)):
            values = pairs(values, heads) if module in name else values
        kind = GGMLQuantizationType[TYPES[i % len(TYPES)] if values.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name(name), quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(folder):
    make_folder(folder / "llama", "llama", torch.float32, "5GB")
    make_folder(folder / "qwen2", "qwen2", torch.bfloat16, "100KB", tie_word_embeddings=True)
    assert len(list((folder / "qwen2").glob("*.safetensors"))) > 1
    make_gguf(folder / "mixed.gguf")


def same(found, expected):
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), (name, (found[name] - values).abs().max())


def opened(folder, **more):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **more)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def mean_loss(model, text, length=64):
    tokens = torch.tensor(list(text.read_bytes()))
    count = (len(tokens) - 1) // length
    inputs, labels = (tokens[i : i + count * length].view(count, length) for i in (0, 1))
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(inputs).logits.double().flatten(0, 1), labels.flatten()).item()


def check_folders(folder):
    before, after = (json.loads((folder / name / "config.json").read_text()) for name in ("qwen2", "qwen2_out"))
    assert before.pop("dtype") == "bfloat16" and after.pop("dtype") == "bfloat16", (before, after)
    assert before == after, (before, after)
    same(opened(folder / "qwen2_out").state_dict(), opened(folder / "qwen2").state_dict())
    assert (folder / "llama_out/generation_config.json").read_bytes() == (folder / "llama/generation_config.json").read_bytes()
    print(f"{mean_loss(opened(folder / 'llama_out', dtype=torch.float32), folder / 'text.txt'):.6f}")


def check_gguf(folder):
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file="mixed.gguf", dtype=torch.float32)
    same(load_file(folder / "mixed_out/model.safetensors"), theirs.state_dict())
    same(opened(folder / "mixed_out", dtype=torch.float32).state_dict(), theirs.state_dict())
    source = GGUFReader(folder / "mixed.gguf")
    for name in ("mixed_f32.gguf", "mixed_q8.gguf"):
        written = GGUFReader(folder / name)
        for key, field in source.fields.items():
            if key.startswith(("GGUF.", "general.file_type")):
                continue
            assert written.fields[key].contents() == field.contents(), (name, key)
        before = {one.name: one for one in source.tensors}
        assert before.keys() == {one.name for one in written.tensors}
        for tensor in written.tensors:
            values = quants.dequantize(before[tensor.name].data, before[tensor.name].tensor_type).astype(np.float32)
            values = values.reshape(before[tensor.name].shape[::-1].tolist())
            if name == "mixed_q8.gguf" and values.ndim == 2:
                assert tensor.tensor_type == GGMLQuantizationType.Q8_0
                assert np.array_equal(tensor.data, quants.quantize(values, GGMLQuantizationType.Q8_0)), tensor.name
            else:
                assert np.array_equal(tensor.data.reshape(values.shape), values), tensor.name


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        check_folders(Path(sys.argv[2]))
        check_gguf(Path(sys.argv[2]))
