"""Mean loss of a folder's model over a file of bytes: folder_loss.py FOLDER FILE TOKENS [SAVE_TO]"""
import sys

import torch
from transformers import AutoModelForCausalLM

folder, file, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
model.eval()
tokens = torch.tensor(list(open(file, "rb").read()))
samples = (len(tokens) - 1) // length
total = 0.0
with torch.no_grad():
    for i in range(samples):
        window = tokens[i * length : (i + 1) * length + 1]
        logits = model(window[:-1].unsqueeze(0)).logits[0]
        total += torch.nn.functional.cross_entropy(logits.double(), window[1:]).item()
print(f"{total / samples:.6f}")
if len(sys.argv) > 4:
    model.save_pretrained(sys.argv[4], safe_serialization=True)
