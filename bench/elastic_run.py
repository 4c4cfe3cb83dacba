"""An elastic launch as a killer sees it: numbers of processes, and how many steps were done."""

import glob
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time


def configuration(folder, name, stage=0, every=0, layers=2, width=64, sequence=64, log=None, build=None, batch=24):
    """Writes a configuration of a run called `name`; its metrics lie in <name>-csv."""
    text = {
        "elasticity": {"enabled": True, "max_train_batch_size": batch, "micro_batch_sizes": [1, 2, 3, 6],
                       "version": 0.1, "ignore_non_elastic_batch_info": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": stage},
        "steps_per_print": None,
        "csv_monitor": {"enabled": True, "output_path": ".", "job_name": name + "-csv"},
        "capstan": {
            "model": {"type": "gpt", "params": {"layers": layers, "d": width, "heads": 4, "seq": sequence,
                                                "vocab": 256}},
            "data": {"path": "data.txt", "sequence_length": sequence},
            "run": {"seed": 7},
            "elastic": {"every": every},
        },
    }
    if log:
        text["capstan"]["data"]["dataset"] = {"type": "LoggedNumbers", "params": {"samples": 1000000, "log": log}}
        text["capstan"]["data"]["shuffle"] = False
        text["capstan"]["plugins"] = {"path": os.path.join(build, "tests/probe_plugins")}
    with open(os.path.join(folder, name + ".json"), "w") as file:
        json.dump(text, file)
    with open(os.path.join(folder, "data.txt"), "w") as file:
        draw = random.Random(5)
        file.write("".join(draw.choice("the drum turns and hauls a rope \n") for _ in range(400000)))


def losses(folder, name):
    """The rows of the run's training loss: sample and value, as they were written."""
    path = os.path.join(folder, name + "-csv", "Train_Samples_train_loss.csv")
    with open(path) as file:
        return file.read().splitlines()[1:]


class ElasticRun:
    def __init__(self, build, folder, launch, train, prefix=(), environment=None):
        self.output = open(os.path.join(folder, "output-%d.txt" % time.monotonic_ns()), "w+")
        self.process = subprocess.Popen(
            [*prefix, os.path.join(build, "bin/capstan"), "launch", *launch, "train", "--no-progress", *train],
            cwd=folder, stdout=self.output, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
        self.shared = None
        self.board = None

    def world(self):
        """What the launcher has decided; None while it has not begun, and once it has ended."""
        if self.shared is None:
            found = glob.glob("/dev/shm/capstan-elastic-%d-%d-*" % (os.geteuid(), self.process.pid))
            if not found or not os.path.exists(found[0] + "/board"):
                return None
            if os.path.getsize(found[0] + "/board") == 0:
                return None
            self.shared = found[0]
            with open(self.shared + "/board", "r+b") as file:
                self.board = mmap.mmap(file.fileno(), 0)
        try:
            with open(self.shared + "/world.json") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def last_step(self):
        """Generation, step, and the time of its end by time.monotonic()."""
        if self.board is None and self.world() is None:
            return (0, 0, 0.0)
        generation, step, at = struct.unpack_from("qqq", self.board, 64)  # StepRecord in core/elastic/board.cpp
        return (generation, step, at * 1e-6)

    def running(self):
        return self.process.poll() is None

    def wait_until(self, condition, seconds=300):
        until = time.monotonic() + seconds
        while not condition():
            if not self.running():
                return False
            if time.monotonic() > until:
                raise SystemExit("the run does not get on:\n" + self.text()[-4000:])
            time.sleep(0.002)
        return True

    def end(self, seconds=120):
        """Interrupts the launcher, as a person would."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def text(self):
        with open(self.output.name) as file:
            return file.read()

    def kill(self):
        if self.running():
            self.process.kill()
            self.process.wait()


class Folder:
    """A folder of the run's own, removed at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="capstan-elastic-bench-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
