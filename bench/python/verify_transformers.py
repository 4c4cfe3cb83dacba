"""capstan.verify() of a tiny model of transformers: verify_transformers.py MODEL [PEER...]"""

import os
import sys

import capstan

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/python"))
import verify_models as models  # noqa: E402

if __name__ == "__main__":
    name, peers = sys.argv[1], sys.argv[2:]
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    print(name + " of transformers:", flush=True)
    found = capstan.verify(getattr(models, name), config, models.sentences, peer=peers)
    sys.exit(0 if found.kept else 1)
