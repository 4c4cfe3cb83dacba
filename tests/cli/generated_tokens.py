"""Greedy tokens of transformers behind a prompt, the same with and without its cache: generated_tokens.py FOLDER ID,ID,... NEW"""
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
prompt = torch.tensor([[int(word) for word in sys.argv[2].split(",")]])


def tokens(use_cache):
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=int(sys.argv[3]), do_sample=False,
                           pad_token_id=0, eos_token_id=None, use_cache=use_cache)
    return found[0, prompt.size(1):].tolist()


assert tokens(True) == tokens(False)
print(*tokens(True), sep=",")
