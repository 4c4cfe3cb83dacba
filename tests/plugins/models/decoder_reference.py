"""Small models of transformers with random weights, and what they compute: decoder_reference.py FOLDER

Makes FOLDER/NAME for each model below: config.json and model.safetensors as save_pretrained() writes them, and
reference.safetensors with a batch (ids, labels) and, in fp32 and bf16, its logits, mean loss and gradients.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = 48
SIZE = dict(vocab_size=300, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128)
GEMMA2 = dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=16)


def rope(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **more))


MODELS = {
    "llama": dict(),
    "llama_biases_tied": dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, pad_token_id=7),
    "llama_llama3": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=64),
    "llama_linear": rope("linear", factor=4.0),
    "llama_dynamic": rope("dynamic", factor=2.5),
    "llama_yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "llama_yarn_mscale": rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.8, mscale_all_dim=1.2,
                              truncate=False, beta_fast=16, beta_slow=2),
    "mistral": dict(sliding_window=None, head_dim=24),
    "mistral_window": dict(sliding_window=16),
    "qwen2": dict(tie_word_embeddings=True),
    "qwen2_late_windows": dict(use_sliding_window=True, sliding_window=48, max_window_layers=1),
    "qwen3": dict(head_dim=32),
    "smollm3": dict(no_rope_layer_interval=2, pad_token_id=0),
    "gemma": dict(head_dim=32),
    "gemma2": GEMMA2,
    "gemma3_text": dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"], **GEMMA2),
    "phi3": dict(pad_token_id=0),
    "phi3_longrope": dict(pad_token_id=0, original_max_position_embeddings=32,
                          rope_parameters=dict(rope_type="longrope", rope_theta=10000.0,
                                               short_factor=[1.0 + i / 8 for i in range(8)],
                                               long_factor=[2.0 + i for i in range(8)])),
    "olmo": dict(clip_qkv=0.5),
    "olmo2": dict(),
    "stablelm": dict(partial_rotary_factor=0.5, use_qkv_bias=True),
    "granite": dict(embedding_multiplier=6.0, residual_multiplier=0.3, attention_multiplier=0.1, logits_scaling=4.0),
}


def type_of(name):
    return name if name == "gemma3_text" else name.split("_")[0]


def computed(model, ids, labels, prefix):
    model.train()
    logits = model(ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)).float(), labels.reshape(-1))
    loss.backward()
    found = {prefix + ".logits": logits.detach(), prefix + ".loss": loss.detach()}
    found.update({prefix + ".gradient." + name: p.grad for name, p in model.named_parameters()})
    return {name: tensor.contiguous() for name, tensor in found.items()}


def make(name, folder):
    torch.manual_seed(1)
    config = AutoConfig.for_model(type_of(name), **{**SIZE, **MODELS[name]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    model.save_pretrained(folder)
    ids = torch.randint(3, SIZE["vocab_size"], (2, TOKENS))
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    in_bf16 = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    save_file({"ids": ids, "labels": labels, **computed(model, ids, labels, "fp32"),
               **computed(in_bf16, ids, labels, "bf16")}, folder / "reference.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for one in MODELS:
        make(one, Path(sys.argv[1]) / one)
