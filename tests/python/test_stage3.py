"""ZeRO stage 3 in two processes: the value inside of a gather, a sentence outside; never a crash, never a wrong number."""

import os
import unittest

from support import in_processes


class OutsideOfForward(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.told, _ = in_processes(2, "at_stage3.py", os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "stage3"))

    def test_reading_and_writing_say_what_holds_values(self):
        for rank in self.told:
            for use, text in rank["outside"].items():
                self.assertIn("capstan.zero.GatheredParameters, or 'with engine.gather():'", text, use)

    def test_reading_gives_values_within_a_gather(self):
        for rank in self.told:
            self.assertEqual({use: text for use, text in rank["inside"].items() if text != "value"}, {})
        self.assertEqual(self.told[0]["copy"], self.told[1]["copy"])

    def test_a_written_value_is_that_of_all_ranks_and_trains(self):
        for rank in self.told:
            self.assertEqual(rank["written"], [0.25, 0.25])

    def test_what_needs_whole_parameters_or_gradients_is_refused(self):
        for rank in self.told:
            self.assertIn("no_sync: ZeRO stage 3 partitions gradients", rank["no_sync"])
            self.assertIn("updates whole parameters in memory, so it runs at stage 0", rank["own optimizer"])

    def test_some_parameters_and_micro_batches_train_as_in_plain_pytorch_at_every_stage(self):
        for rank in self.told:
            self.assertEqual(len(rank["some parameters"]), 8)
            for what, apart in rank["some parameters"].items():
                self.assertLess(apart, 3e-6, what)

    def test_what_went_on_between_changes_nothing(self):
        for rank in self.told:
            self.assertIn("exception", rank)
            self.assertFalse(rank["not saved"])
            for fact in ("copies have no part in the engine",
                         "maybe_zero_3", "marks", "marks are gone", "evaluation has no graph", "same as quiet", "two engines", "after thirty", "resumed", "handed over",
                         "saved"):
                self.assertTrue(rank[fact], fact)
            self.assertEqual(*rank["ids"])
            self.assertEqual(rank["generated"], [8, 12, 96])
            self.assertEqual(rank["module alone"], [8, 12, 96])


class EnginesOfOneProcess(unittest.TestCase):
    def check(self, stage):
        told, _ = in_processes(2, "engines_fail.py", stage)
        for rank in told:
            for fact in ("after another order", "after one has left", "after one has raised"):
                self.assertTrue(rank[fact], fact)
        self.assertIn("rank 1 has finished without it", told[0]["left"])
        self.assertIn("rank 1 has finished without it", told[0]["raised"])
        self.assertIn("Expected tensor for argument #1 'indices'", told[1]["raised"])

    def test_do_not_mind_each_others_ends_at_stage_1(self):
        self.check(1)

    def test_do_not_mind_each_others_ends_at_stage_3(self):
        self.check(3)


class CompiledModules(unittest.TestCase):
    def test_train_as_they_are_where_operators_are_seen(self):
        told, _ = in_processes(2, "compiled.py", "eager", "aot_eager")
        for rank in told:
            self.assertEqual((rank["eager"], rank["aot_eager"]), (rank["plain"], rank["plain"]))


if __name__ == "__main__":
    unittest.main()
