"""transformers' Trainer trains with `import capstan.deepspeed` before it and nothing else changed."""

import os
import unittest

from support import in_processes


class Trainer(unittest.TestCase):
    def check(self, stage):
        told, _ = in_processes(2, "hf_trainer.py", stage, os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], f"stage{stage}"))
        first, again = told[0]
        self.assertEqual(first["engine"], "capstan.engine")
        self.assertEqual(len(first["loss"]), 4)
        self.assertLess(first["eval_loss"][-1], first["eval_loss"][0])
        self.assertEqual(first["generated"], [1, 5])
        self.assertEqual(told[1][0]["hash"], first["hash"])
        # The embedding that is the head as well is written once.
        self.assertIn("transformer.wte.weight", first["saved"])
        self.assertNotIn("lm_head.weight", first["saved"])
        # Saved at step 2, resumed, and the same bit for bit.
        for key in ("loss", "grad_norm", "learning_rate", "eval_loss", "hash"):
            self.assertEqual(again[key], first[key], key)

    def test_at_stage_2(self):
        self.check(2)

    def test_at_stage_3(self):
        self.check(3)


class Accelerate(unittest.TestCase):
    def test_trains_by_a_loop_of_its_examples(self):
        told, _ = in_processes(2, "accelerate_loop.py", 3, os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "accelerate"))
        for rank in told:
            self.assertEqual((rank["engine"], rank["steps"]), ("capstan.engine", 2))
            self.assertEqual(rank["losses"], told[0]["losses"])
            # accelerate moves a schedule on once a process.
            self.assertEqual(rank["rates"], [0.01 * (1 / n) for n in (1, 3, 3, 5)])
        self.assertTrue(told[0]["state"])


if __name__ == "__main__":
    unittest.main()
