"""capstan.Run: the loop of `capstan train` for modules of PyTorch."""

import contextlib
import csv
import glob
import io
import json
import os
import signal
import subprocess
import sys
import time

import torch
from run_program import DATA, Net

import capstan
from support import CAPSTAN, HERE, Fixture


def config_of(name, run, **more):
    """Writes the configuration of a run whose files go to the folder NAME."""
    settings = {"elasticity": {"enabled": True, "version": 0.1, "max_train_batch_size": 12, "micro_batch_sizes": [2, 3],
                               "max_gpus": 4},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "gradient_clipping": 1.0, "steps_per_print": 5,
                "csv_monitor": {"enabled": True, "output_path": name, "job_name": "csv"},
                "capstan": {"run": {"save_dir": name + "/ck", **run}, "elastic": {"every": 7}}, **more}
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return name + ".json"


def rows_of(name, metric):
    with open(f"{name}/csv/Train_Samples_{metric}.csv", encoding="utf-8") as file:
        return list(csv.reader(file))


def weights_of(name, tag):
    return {os.path.basename(path): open(path, "rb").read() for path in glob.glob(f"{name}/ck/{tag}/**/*.safetensors", recursive=True)}


def command(*words, launch=()):
    words = [sys.executable, "-W", "ignore", os.path.join(HERE, "run_program.py"), *words]
    return [CAPSTAN, "launch", *launch, *words] if launch else words


def started(*words, launch=()):
    return subprocess.Popen(command(*words, launch=launch), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(*words, launch=()):
    return subprocess.run(command(*words, launch=launch), capture_output=True, text=True, timeout=300, check=False)


class Runs(Fixture):
    def setUp(self):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], self.id())
        os.makedirs(folder)
        os.chdir(folder)

    def assert_equal_runs(self, one, other, tag):
        for metric in ("train_loss", "eval_loss"):
            self.assertEqual(rows_of(one, metric), rows_of(other, metric))
        self.assertTrue(weights_of(one, tag))
        self.assertEqual(weights_of(one, tag), weights_of(other, tag))

    def test_loop_and_resume_have_the_bits_of_train(self):
        def lines_of(how, config, **options):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                run = capstan.Run(Net, config, DATA, eval_data=DATA, **options)
                if how == "train":
                    self.assertEqual(run.train(), 0)
                else:
                    for batch in run:
                        run.engine.backward(run.engine(*batch))
                        run.engine.step()
                    self.assertEqual(run.exit_code, 0)
            return out.getvalue()

        steps = {"steps": 12, "eval_every": 5, "save_every": 6}
        self.assertIn("step=5, eval_loss=", lines_of("train", config_of("whole", steps)))
        lines_of("loop", config_of("loop", steps))
        self.assert_equal_runs("whole", "loop", "global_step12")
        lines_of("train", config_of("parts", {"steps": 6}))
        rest = lines_of("loop", config_of("parts", steps), resume="parts/ck")
        self.assertIn("resumed from parts/ck/global_step6 at step 6", rest)
        self.assertEqual(weights_of("parts", "global_step12"), weights_of("whole", "global_step12"))

    def test_order_is_that_of_the_loader(self):
        """Each sample once in a pass, in the order of initialize()'s loader."""
        data = torch.utils.data.TensorDataset(torch.arange(24.0).unsqueeze(1))
        config = {"train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_print": None,
                  "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "capstan": {"run": {"steps": 3}}}

        run, seen = capstan.Run(lambda: torch.nn.Linear(1, 1), config, data), []
        for (x,) in run:
            seen.append(x.flatten().tolist())
            run.engine.backward(run.engine(x).mean())
            run.engine.step()
        self.raises(capstan.RuntimeFault, "engine: the run is not under way.", lambda: run.engine)
        engine, _, loader, _ = capstan.initialize(model=torch.nn.Linear(1, 1), config=config, training_data=data)
        self.assertEqual(seen, [x.flatten().tolist() for (x,) in loader])
        self.assertEqual(sorted(sum(seen, [])), list(range(24)))
        engine.destroy()

    def test_loses_nothing_where_a_process_is_killed(self):
        launch = ("--elastic", "2:2", "--config", "straight.json")
        straight = train("train", config_of("straight", {"steps": 600}), launch=launch)
        self.assertEqual(straight.returncode, 0, straight.stderr)
        config_of("killed", {"steps": 600, "save_every": 50})
        launch = ("--elastic", "2:2", "--config", "killed.json")
        run = started("train", "killed.json", launch=launch)
        while not os.path.exists("killed/ck/latest") and run.poll() is None:
            time.sleep(0.01)
        children = open(f"/proc/{run.pid}/task/{run.pid}/children", encoding="utf-8").read().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        out, err = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0, err)
        self.assertIn("was killed by SIGKILL", err)
        self.assertIn("1 process lost", out)
        self.assert_equal_runs("straight", "killed", "global_step600")

    def test_runs_beside_torch_distributed(self):
        for how in ("train", "beside torch.distributed"):
            name = how.replace(" ", "-")
            result = train(how, config_of(name, {"steps": 4, "eval_every": 2}), launch=("-n", "2"))
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_equal_runs("train", "beside-torch.distributed", "global_step4")

    def test_is_ended_by_a_signal_after_the_step(self):
        for how in ("train", "loop"):
            run = started(how, config_of(how, {"steps": 10**9}))
            while "step=10," not in run.stdout.readline():
                self.assertIsNone(run.poll())
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=120)
            self.assertEqual(run.returncode, 130, err)
            self.assertIn("Continue with --resume", err)
            self.assertNotIn("KeyboardInterrupt", err)

    def test_names_mistakes(self):
        for model in (object(), torch.nn.Linear(1, 1)):
            self.raises(capstan.ConfigError, "must be a function that makes the module", capstan.Run, model, {}, [1])
        self.raises(capstan.ConfigError, "data: must have samples by number", capstan.Run, Net, {}, iter([1]))
        self.raises(capstan.ConfigError, "eval_data: has no samples", capstan.Run, Net, {}, [1], eval_data=[])
        self.raises(capstan.ConfigError, "capstan.run.steps: not given", capstan.Run(Net, config_of("a", {}), DATA).train)

        def loss_that_raises(model, batch):
            raise LookupError("a mistake of the program's")

        config = config_of("b", {"steps": 2})
        self.raises(LookupError, "a mistake of the program's", capstan.Run(Net, config, DATA, loss=loss_that_raises).train)
        self.raises(LookupError, "a mistake of the program's",
                    capstan.Run(Net, config_of("c", {"steps": 2}), DATA, eval_data=DATA,
                                loss=lambda model, batch: model(*batch) if model.training else loss_that_raises(model, batch)).train)
        self.raises(capstan.RuntimeFault, "next: step 1 has had its 4 micro-batches, and was not ended",
                    lambda: list(capstan.Run(Net, config_of("d", {"steps": 2}), DATA)))
        before = signal.getsignal(signal.SIGINT)
        run = capstan.Run(Net, config_of("e", {"steps": 1}), DATA)
        self.assertEqual(run.train(), 0)
        self.assertEqual(signal.getsignal(signal.SIGINT), before)
        self.raises(capstan.RuntimeFault, "train: this run has begun. Make another Run.", run.train)

    def test_names_what_an_elastic_launch_cannot_do(self):
        config_of("elastic", {"steps": 2})
        launch = ("--elastic", "2:2", "--config", "elastic.json")
        for how, words in {"loop": "next: the processes of 'capstan launch --elastic' change within a step",
                           "own engine": "initialize: 'capstan launch --elastic' has started this program"}.items():
            result = train(how, "elastic.json", launch=launch)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    import unittest

    unittest.main()
