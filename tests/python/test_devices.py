"""A program in Python trains on a vendor's device, which torch knows by its name alone, as on the CPU."""

import os
import sys
import unittest

from support import Fixture, in_processes

EMULATED = os.path.join(os.path.dirname(os.path.dirname(os.environ["CAPSTAN_TEST_PROGRAM"])), "lib/capstan/emulated")


# The bound of fp32 in docs/how-to/gpus.md. Losses are about 1, and one processor differed by 6e-8 in the fourth.
BOUND = 1e-6


class Devices(Fixture):
    def losses_on(self, device, stage, processes):
        told, _ = in_processes(processes, "on_device.py", device, str(stage), EMULATED)
        for rank, one in enumerate(told):
            self.assertEqual(one["device"], device if device == "cpu" else f"{device}:{rank}")
        return [one["losses"] for one in told]

    def test_a_device_that_torch_knows_by_its_name_alone(self):
        for stage, processes in ((0, 1), (2, 2), (3, 2)):
            with self.subTest(stage=stage):
                there, here = self.losses_on("emulated", stage, processes), self.losses_on("cpu", stage, processes)
                self.assertEqual([len(losses) for losses in there], [len(losses) for losses in here])
                for one, other in zip(sum(there, []), sum(here, [])):
                    self.assertAlmostEqual(one, other, delta=BOUND)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
