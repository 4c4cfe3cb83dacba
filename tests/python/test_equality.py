"""Engines compute what plain PyTorch computes, at every ZeRO stage."""

import unittest

from models import MODELS
from support import in_processes

STEPS = 10


class TrainingIsThatOfPlainPyTorch(unittest.TestCase):
    def check(self, size):
        told, _ = in_processes(size, "train_models.py", STEPS, "0,1,2,3", *MODELS)
        for name in MODELS:
            plain = told[0][name]["plain"]
            self.assertGreater(abs(plain[0] - plain[-1]), 1e-4, f"{name} does not learn")
            hashes = {rank[name][stage]["hash"] for rank in told for stage in "0123"}
            self.assertEqual(len(hashes), 1, f"{name}: parameters differ between stages or ranks")
            for stage in "0123":
                means = [sum(rank[name][stage]["losses"][i] for rank in told) / size for i in range(STEPS)]
                for i, (ours, theirs) in enumerate(zip(means, plain)):
                    self.assertLess(abs(ours - theirs), 2e-6, f"{name}, stage {stage}, step {i}: {ours} and {theirs}")

    def test_in_one_process(self):
        self.check(1)

    def test_in_two_processes(self):
        self.check(2)


if __name__ == "__main__":
    unittest.main()
