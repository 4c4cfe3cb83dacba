"""What the tests share: programs in several processes, and numbers of engines."""

import hashlib
import json
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CAPSTAN = os.environ["CAPSTAN_TEST_PROGRAM"]  # bin/capstan of the build


class Fixture(unittest.TestCase):
    def raises(self, kind, text, function, *args, **kwargs):
        with self.assertRaisesRegex(kind, re.escape(text)):
            function(*args, **kwargs)


def config(stage=0, **more):
    return {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True}},
            "zero_optimization": {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {})},
            "steps_per_print": None, **more}


def values_hash(engine):
    """Of all parameters' bytes, in the module's order."""
    digest = hashlib.sha256()
    with engine.gather():
        for name, parameter in engine.module.named_parameters():
            digest.update(name.encode())
            digest.update(parameter.detach().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def in_processes(count, script, *arguments, check=True, timeout=300, environment=None):
    """Runs a script of this folder in so many processes. Returns what each rank wrote with tell(), by rank, and the result."""
    out = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], f"told-{os.getpid()}-{in_processes.calls}")
    in_processes.calls += 1
    os.makedirs(out)
    command = [sys.executable, "-W", "ignore", os.path.join(HERE, script), *map(str, arguments)]
    if count > 1:
        command = [CAPSTAN, "launch", "-n", str(count), *command]
    result = subprocess.run(command, env={**os.environ, "CAPSTAN_TEST_TOLD": out, **(environment or {})}, text=True,
                            capture_output=True, timeout=timeout)
    if check and result.returncode != 0:
        raise AssertionError(f"exit code {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-8000:]}")
    told = []
    for rank in range(count):
        path = os.path.join(out, str(rank))
        told.append(json.load(open(path, encoding="utf-8")) if os.path.exists(path) else None)
    return told, result


in_processes.calls = 0


def tell(value):
    """In a script of in_processes(): what this rank has found."""
    with open(os.path.join(os.environ["CAPSTAN_TEST_TOLD"], os.environ.get("RANK", "0")), "w", encoding="utf-8") as file:
        json.dump(value, file)
