"""The functions of deepspeed.utils that show and set fp32 values, gradients and states of the optimizer, at every stage."""

import unittest

from support import in_processes

KEYS = ("gradients", "shapes", "norm", "states", "masters", "after", "step")


class Kept(unittest.TestCase):
    def check(self, seen):
        self.assertIn("gradients are averaged over ranks and micro-batches with the last backward of a step", seen["before"])
        self.assertIn("gradient of 'inner.weight': gradients are averaged", seen["within"])
        self.assertEqual(seen["shapes"], [[4, 4], [4], [1, 4], [1]])
        self.assertEqual(seen["frozen"], [True, True, True])
        self.assertEqual(seen["step"], 1)
        for fact in ("doubled", "expected", "set", "module", "set in parts"):
            self.assertTrue(seen[fact], fact)
        self.assertAlmostEqual(seen["norm"], seen["by hand"], places=6)
        self.assertIn("'momentum_buffer' of 'inner.weight': the optimizer has no such state; it has 'exp_avg', 'exp_avg_sq'",
                      seen["lacks"])
        self.assertIn("safe_set_full_fp32_param: no engine trains this parameter.", seen["others"])
        self.assertIn("'inner.weight' takes no other values while the module runs. Call it outside of forward.", seen["inside"])
        self.assertIn("master of 'inner.weight': takes 16 elements, got 3.", seen["sizes"])

    def test_are_the_same_bits_at_every_stage_of_two_processes(self):
        told, _ = in_processes(2, "kept.py", 0, 1, 2, 3)
        for rank in told:
            for seen in (*(rank[stage] for stage in "0123"), *rank["bf16"].values()):
                self.check(seen)
            # Stages 2 and 3 average before they add micro-batches up.
            self.assertEqual(*[[rank[stage][key] for key in KEYS] for stage in "01"])
            self.assertEqual(*[[rank[stage][key] for key in KEYS] for stage in "23"])
        for stage in "0123":
            self.assertEqual(*[[rank[stage][key] for key in KEYS] for rank in told])
        self.assertEqual([rank["0"]["parts"] for rank in told], [16, 16])
        for stage in "123":
            self.assertEqual(sum(rank[stage]["parts"] for rank in told), 16)

    def test_are_those_of_a_process_alone(self):
        alone = in_processes(1, "kept.py", 0)[0][0]
        for seen in (alone["0"], alone["bf16"]["0"], alone["fp16"]):
            self.check(seen)
        self.assertIn("'seen' of 'inner.weight': the optimizer has no such state; it has none: it makes", alone["own"][0])
        self.assertTrue(alone["own"][1])


if __name__ == "__main__":
    unittest.main()
