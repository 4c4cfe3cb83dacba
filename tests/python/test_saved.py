"""What a checkpoint and an export hold of a module: the names of its state_dict(), and what each rank has for itself."""

import json
import os
import re
import resource
import subprocess
import unittest

import torch

import capstan
from models import frozen_net
from small_engine import Net as SmallNet, engine_of, step
from support import CAPSTAN, config, in_processes, values_hash

FOLDER = os.environ["CAPSTAN_TEST_FOLDER"]


class Net(torch.nn.Module):
    """A tied head, a running mean, and a mask that state_dict() leaves out."""

    def __init__(self, longest):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(longest, longest).tril(), persistent=False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, ids):
        x = self.mask[:len(ids), :len(ids)] @ self.embed(ids)
        self.mean += x.detach().mean(0)
        return torch.nn.functional.cross_entropy(self.head(x), ids)


def trained(longest=8):
    engine = capstan.initialize(model=Net(longest), config=config())[0]
    engine.backward(engine(torch.arange(4)))
    engine.step()
    return engine


class FromDeepSpeed(unittest.TestCase):
    """A run of torch alone, which the stand-in for DeepSpeed's file at ZeRO stage 0 has whole."""

    def test_goes_on_with_the_states_and_the_programs_schedule(self):
        def schedule(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

        torch.manual_seed(5)
        net = SmallNet()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
        rates = schedule(optimizer)

        def steps(count):
            for _ in range(count):
                optimizer.zero_grad()
                net(torch.ones(4, 4)).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                rates.step()

        steps(3)
        folder = os.path.join(FOLDER, "from_deepspeed")
        os.makedirs(os.path.join(folder, "global_step3"))
        torch.save({"module": net.state_dict(), "buffer_names": [], "optimizer": optimizer.state_dict(), "param_shapes": None,
                    "frozen_param_shapes": None, "shared_params": None, "lr_scheduler": rates.state_dict(), "skipped_steps": 0,
                    "global_steps": 3, "global_samples": 12, "dp_world_size": 1, "mp_world_size": 1, "ds_config": {},
                    "ds_version": "0.19.8", "epoch": 4}, os.path.join(folder, "global_step3", "mp_rank_00_model_states.pt"))
        with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as file:
            file.write("global_step3")
        steps(2)

        engine = engine_of(SmallNet(), lr_scheduler=schedule)
        self.assertEqual(engine.load_checkpoint(folder), (os.path.join(folder, "global_step3"), {"epoch": 4}))
        self.assertEqual((engine.global_steps, engine.global_samples, engine.get_lr()), (3, 12, [1e-2 * 0.5**3]))
        for _ in range(2):
            step(engine)
        self.assertEqual(engine.get_lr(), rates.get_last_lr())
        for expected, found in zip(net.parameters(), engine.module.parameters()):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)

    def test_gives_its_weights_alone_to_an_engine_that_begins(self):
        folder = os.path.join(FOLDER, "weights_alone")
        torch.manual_seed(5)
        theirs = capstan.initialize(model=SmallNet(), config=config())[0]
        step(theirs)
        theirs.save_checkpoint(folder, "one", client_state={"epoch": 4})
        engine, net = engine_of(SmallNet()), SmallNet()
        net.load_state_dict(theirs.module.state_dict())
        fresh = capstan.initialize(model=net, config=config())[0]
        self.assertEqual(engine.load_checkpoint(folder, "one", load_module_only=True), (os.path.join(folder, "one"), {"epoch": 4}))
        self.assertEqual((engine.global_steps, values_hash(engine)), (0, values_hash(theirs)))
        self.assertEqual(step(engine), step(fresh))
        self.assertEqual(values_hash(engine), values_hash(fresh))


class Names(unittest.TestCase):
    def test_are_those_of_state_dict(self):
        folder = os.path.join(FOLDER, "names")
        engine = trained()
        engine.save_checkpoint(folder, "one")
        with open(os.path.join(folder, "one", "index.json"), encoding="utf-8") as file:
            names = {tensor["parameter"] for tensor in json.load(file)["tensors"] if tensor["state"] in ("param", "buffer")}
        self.assertEqual(names, {"embed.weight", "mean"})
        with open(os.path.join(folder, "one", "state.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tied"], {"head.weight": "embed.weight"})

    def test_let_a_longer_context_go_on(self):
        folder = os.path.join(FOLDER, "longer")
        engine = trained()
        engine.save_checkpoint(folder)
        longer = capstan.initialize(model=Net(16), config=config())[0]
        longer.load_checkpoint(folder)
        self.assertTrue(torch.equal(longer.module.mask, torch.ones(16, 16).tril()))
        self.assertTrue(torch.equal(longer.module.mean, engine.module.mean))
        self.assertEqual(longer(torch.arange(4)).item(), engine(torch.arange(4)).item())

    def test_of_an_export_open_with_load_state_dict(self):
        folder = os.path.join(FOLDER, "exported")
        engine = trained()
        engine.save_checkpoint(folder)
        for to in ("pt", "safetensors"):
            path = os.path.join(folder, "m." + to)
            subprocess.run([CAPSTAN, "export", "--checkpoint", folder, "--to", to, "--out", path], check=True,
                           capture_output=True, timeout=60)
            if to == "pt":
                state = torch.load(path, weights_only=True)
                self.assertEqual(state.keys(), engine.module.state_dict().keys())
                self.assertEqual(state["head.weight"].data_ptr(), state["embed.weight"].data_ptr())
                Net(16).load_state_dict(state)
            else:
                from safetensors.torch import load_file
                self.assertEqual(load_file(path).keys(), {"embed.weight", "mean"})
        engine.load_weights(os.path.join(folder, "m.safetensors"))

    def test_of_a_buffer_with_several_are_one_that_is_saved(self):
        class Shared(Net):
            def __init__(self):
                super().__init__(8)
                self.register_buffer("left_out", self.mean, persistent=False)
                self.register_buffer("again", self.mean)
                self._buffers = {name: self._buffers[name] for name in ("left_out", "mask", "mean", "again")}

        folder = os.path.join(FOLDER, "shared")
        engine = capstan.initialize(model=Shared(), config=config())[0]
        engine.save_checkpoint(folder, "one")
        with open(os.path.join(folder, "one", "state.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tied"], {"head.weight": "embed.weight", "again": "mean"})


class FrozenParameters(unittest.TestCase):
    def names_in(self, folder):
        with open(os.path.join(folder, "one", "index.json"), encoding="utf-8") as file:
            return {tensor["parameter"] for tensor in json.load(file)["tensors"] if tensor["state"] == "param"}

    def test_are_left_out_on_request_and_the_models_own_stay(self):
        """Saved by two processes at stages 0 and 3, loaded there and by this one."""
        folder = os.path.join(FOLDER, "frozen")
        told, result = in_processes(2, "frozen.py", folder)
        for stage in ("0", "3"):
            small = os.path.join(folder, stage)
            self.assertEqual(self.names_in(small), {"head.weight", "head.bias"})
            for rank in told:
                saved, resumed = rank[stage]
                self.assertEqual(resumed, saved)
            engine = capstan.initialize(model=frozen_net(), config=config())[0]
            engine.load_checkpoint(small, load_module_strict=False)
            self.assertEqual(values_hash(engine), told[0][stage][0])
        self.assertIn("was saved without parameters that are not trained. The model's own values of 2 such parameters stay",
                      result.stderr)

    def test_that_are_trained_now_are_missed(self):
        folder = os.path.join(FOLDER, "thawed")
        engine = capstan.initialize(model=frozen_net(), config=config())[0]
        engine.save_checkpoint(folder, exclude_frozen_parameters=True)
        thawed = capstan.initialize(model=frozen_net().requires_grad_(), config=config())[0]
        with self.assertRaisesRegex(capstan.RuntimeFault, "body.weight"):
            thawed.load_checkpoint(folder)


class LoadModuleStrict(unittest.TestCase):
    def test_false_takes_what_checkpoint_and_module_have_in_common(self):
        """Saved by a process alone, loaded by two at stages 0 and 3 into a module with another head."""
        folder = os.path.join(FOLDER, "partial")
        told, result = in_processes(2, "partial_load.py", folder)
        for rank in told:
            for stage in ("0", "3"):
                facts = rank[stage]
                self.assertIn("'new.weight'", facts["strict"])
                for fact in ("body", "state of body", "new", "state of new", "buffer", "trains"):
                    self.assertTrue(facts[fact], fact)
                self.assertIn("'body.weight' has shape [4, 4], this model's is [8, 4]", facts["shape"])
        for text in ("holds nothing for 'new.weight', 'new.bias', 'seen', which keep the values that they have.",
                     "holds parameter 'head.bias', 'head.weight', which this model does not have. The values are not used."):
            self.assertEqual(result.stderr.count(text), 2, text)  # once a stage, by rank 0
        # What every rank finds is said by rank 0: of three engines a stage, and of one call.
        self.assertEqual(result.stderr.count("gradient_clipping: "), 6, result.stderr)
        self.assertEqual(result.stderr.count("set_z3_leaf_modules: "), 1)


class StatesAndSchedule(unittest.TestCase):
    def test_begin_anew_on_request_with_the_same_bits_at_every_stage(self):
        for world in (1, 2):
            ways = in_processes(world, "fresh_states.py", os.path.join(FOLDER, f"fresh-{world}"))[0][0]
            for stage, ways_of in ways.items():
                with self.subTest(world=world, stage=stage):
                    self.check(ways_of)
            self.assertEqual({name: way["end"] for name, way in ways["0"].items()}, {name: way["end"] for name, way in ways["3"].items()})

    def check(self, ways):
        for name, way in ways.items():
            self.assertEqual(way["client"], {"epoch": 4}, name)
            self.assertEqual(way["loaded"], ways["whole"]["loaded"], name)  # masters of the checkpoint, whatever else is taken
            self.assertEqual(way["steps"], 0 if name.startswith("module") else 3, name)
        anew = ways["module alone"]
        for same in ("both anew", "module alone, not strict"):  # fresh states, the schedule at its start: as weights alone
            self.assertEqual((ways[same]["losses"], ways[same]["rates"], ways[same]["end"]), (anew["losses"], anew["rates"], anew["end"]))
        self.assertEqual(ways["states anew"]["rates"], ways["whole"]["rates"])  # the schedule goes on
        self.assertEqual(ways["schedule anew"]["rates"], anew["rates"])
        for name in ("states anew", "schedule anew", "another optimizer"):
            self.assertNotEqual(ways[name]["end"], ways["whole"]["end"], name)
            self.assertNotEqual(ways[name]["end"], anew["end"], name)


class RunningStatistics(unittest.TestCase):
    def test_of_every_rank_come_back(self):
        told, _ = in_processes(2, "batch_norm.py", os.path.join(FOLDER, "norm"))
        for rank in told:
            for stage, (saved, resumed, later, resumed_later) in rank.items():
                self.assertEqual(resumed, saved, stage)
                self.assertEqual(resumed_later, later, stage)
        # Ranks have seen other samples, so that there was something to lose.
        self.assertNotEqual(*(rank["0"][0] for rank in told))


class FullDisk(unittest.TestCase):
    def test_leaves_nothing_of_save_16bit_model(self):
        folder = os.path.join(FOLDER, "full")
        engine = trained()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))  # Python ignores SIGXFSZ
        try:
            with self.assertRaisesRegex(capstan.RuntimeFault, re.escape(
                    f"save_16bit_model: '{folder}/pytorch_model.bin' cannot be written: ") + ".*Free space there"):
                engine.save_16bit_model(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
