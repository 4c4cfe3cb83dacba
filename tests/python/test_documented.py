"""Runs every Python block of README.md and docs/, each in a process and a folder of its own."""

import json
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.environ["CAPSTAN_TEST_SOURCE"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DATA = """
import torch
from models import VOCABULARY, gpt2
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}
data = Data()
"""
CLASSIFIED = """
import torch, sys
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
data = torch.utils.data.TensorDataset(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))
"""
LOSS = "loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
TRAINED = "\nassert engine.global_steps == 2, engine.global_steps\n"

# Names that a block leaves to its reader, and what must hold after the block: by page and place of the block in it.
AROUND = {
    ("README.md", 0): (DATA + "net = gpt2()", TRAINED),
    ("docs/how-to/runs.md", 0): (DATA + "from models import gpt2 as Net\nheld_out = data\n", ""),
    ("docs/how-to/runs.md", 1): (CLASSIFIED + "import capstan\n", "assert run.train() == 0"),
    ("docs/how-to/runs.md", 2): (CLASSIFIED + LOSS + "import capstan\nrun = capstan.Run(Net, 'ds_config.json', data)\n", ""),
    ("docs/explanation/numerics.md", 0): (  # one variant for all of them
        "import capstan, functools\ncapstan.verify = functools.partial(capstan.verify, only='own loop')\n"
        "open('my_model.py', 'w').write('from verify_models import labelled as build_model, tokens as data')\n",
        "assert found.variants[1]['verdict'] == 'kept'"),
    ("docs/reference/python.md", 0): (DATA + "net = gpt2()", TRAINED + "import os\nassert os.path.exists('ckpt/latest')"),
    ("docs/reference/python.md", 1): (
        "import torch\nfrom small_engine import engine_of\nfirst, second = (engine_of(torch.nn.Linear(4, 4)) for _ in range(2))\n"
        "x = torch.ones(4, 4)\nloss_of = lambda output: output.square().mean()",
        "assert first.global_steps == second.global_steps == 1"),
    ("docs/reference/python.md", 2): (
        "import capstan.deepspeed\nfrom small_engine import engine_of\nimport torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.head(x)\n"
        "model = Model()\nengine = engine_of(model, stage=2)\nloss = engine(torch.ones(4, 4)).square().mean()",
        "assert gradient.shape == master.shape == moment.shape == (4, 4)\n"
        "assert torch.allclose(moment / moment.norm(), gradient / gradient.norm())"),
    ("docs/reference/python.md", 3): (
        DATA + "import capstan\nfrom support import config\nmodel = gpt2()\nmodel.head = torch.nn.Linear(2, 2)\n"
        "engine = capstan.initialize(model=model, config=config(stage=3))[0]", "import os\nassert os.path.exists('out/config.json')"),
    ("docs/reference/python.md", 4): (DATA + "model = gpt2()\nimport os\nos.environ['ACCELERATE_USE_DEEPSPEED'] = 'true'\n", ""),
    ("docs/how-to/exporting-compressed.md", 0): (
        "from transformers import OPTConfig, OPTForCausalLM\n"
        "OPTForCausalLM(OPTConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, ffn_dim=8, num_attention_heads=1, "
        "max_position_embeddings=8, word_embed_proj_dim=8)).save_pretrained('opt')", "assert model.num_parameters() > 0"),
}


def blocks():
    pages = [os.path.join(SOURCE, "README.md")]
    for folder, _, files in sorted(os.walk(os.path.join(SOURCE, "docs"))):
        pages += [os.path.join(folder, name) for name in sorted(files) if name.endswith(".md")]
    for page in pages:
        for place, code in enumerate(BLOCK.findall(open(page, encoding="utf-8").read())):
            yield (os.path.relpath(page, SOURCE), place), code


class Documented(unittest.TestCase):
    def test_every_block_runs(self):
        found = dict(blocks())
        self.assertEqual(sorted(found), sorted(AROUND), "a block without an entry in AROUND, or an entry without a block")
        for (page, place), code in found.items():
            with self.subTest(page=page, place=place):
                self.run_block(f"{page}-{place}".replace("/", "-"), code, *AROUND[page, place])

    def run_block(self, name, code, before, after):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], name)
        os.mkdir(folder)
        by_trainer = "Trainer" in code  # which wants its own arguments wherever it finds a value
        with open(os.path.join(folder, "ds_config.json"), "w", encoding="utf-8") as file:
            json.dump({"train_micro_batch_size_per_gpu": "auto" if by_trainer else 2, "zero_optimization": {"stage": 1},
                       "optimizer": {"type": "AdamW", "params": {"lr": "auto" if by_trainer else 1e-3}},
                       "capstan": {"run": {"steps": 2}}}, file)
        first = "import capstan.deepspeed\n" if "capstan.deepspeed" in code else ""  # before the imports of `before`
        result = subprocess.run([sys.executable, "-W", "ignore", "-c", f"{first}{before}\n{code}\n{after}"], cwd=folder,
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
