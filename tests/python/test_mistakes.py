"""The engine in one process: a sentence for every mistake."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
import traceback
import unittest

import torch

import capstan
from engine_guards import CodeInCheckpoints, WhatWouldBeLost  # noqa: F401  tests of this process too
from small_engine import Net, engine_of, step
from support import Fixture, config, in_processes


class MistakesAreSentences(Fixture):
    def test_in_what_initialize_is_given(self):
        self.raises(capstan.ConfigError, "config: is missing. Give the path", capstan.initialize, model=Net())
        self.raises(capstan.ConfigError, "model: is missing", capstan.initialize, config={})
        self.raises(capstan.ConfigError, "config: must be a path or a dict, got int", capstan.initialize, model=Net(), config=3)
        self.raises(capstan.ConfigError, "'/no/such.json' is neither an existing file", capstan.initialize, model=Net(),
                    config="/no/such.json")
        self.raises(capstan.ConfigError, "config: is given more than once", capstan.initialize, model=Net(), config={},
                    config_params={"train_batch_size": 1})
        self.raises(capstan.ConfigError, "model: must be a torch.nn.Module, got int", capstan.initialize, model=3, config={})
        self.raises(capstan.ConfigError, "mpu: tensor, pipeline and sequence parallelism", capstan.initialize, model=Net(),
                    config={}, mpu=3)

    def test_in_a_dict_they_are_those_of_validate(self):
        keys = config()
        keys["optimizer"]["params"]["lrr"] = 1
        with self.assertRaises(capstan.ConfigError) as caught:
            capstan.initialize(model=Net(), config=keys)
        self.assertIn("config: optimizer.params.lrr: unknown key. Did you mean 'lr'?", str(caught.exception))
        self.assertNotIn("config:1", str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)

    def test_in_the_model(self):
        self.raises(capstan.RuntimeFault, "parameter 'inner.weight' is on torch's meta device", engine_of, Net().to("meta"))
        net = Net()
        net.outer.weight.data = net.inner.weight.data[:1]
        self.raises(capstan.RuntimeFault, "are two tensors on the same values", engine_of, net)
        engine = engine_of()
        self.raises(capstan.ConfigError, "model: is an engine already", engine_of, engine)
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.raises(capstan.ConfigError, "model: is wrapped by DistributedDataParallel", engine_of,
                    torch.nn.parallel.DistributedDataParallel(Net()))
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        self.raises(capstan.ConfigError, "model: is wrapped by FSDPNet", engine_of,
                    dist.fsdp.fully_shard(Net(), mesh=mesh))

    def test_in_the_order_of_calls(self):
        engine = engine_of()
        self.raises(capstan.RuntimeFault, "step() without a micro-batch", engine.step)
        loss = engine(torch.ones(4, 4)).square().mean()
        engine.backward(loss, retain_graph=True)
        self.raises(capstan.RuntimeFault, "backward: this forward has had its backward", engine.backward, loss)
        other = engine(torch.ones(4, 4)).square().mean()
        self.raises(capstan.RuntimeFault, "backward: step 0 has had its 1 micro-batch", engine.backward, other)
        engine.step()
        self.assertEqual(engine.global_steps, 1)
        step(engine)

    def test_in_the_loss(self):
        engine = engine_of()
        out = engine(torch.ones(4, 4))
        self.raises(capstan.RuntimeFault, "the loss must be a scalar, got a tensor of shape [4, 1]", engine.backward, out)
        self.raises(capstan.RuntimeFault, "takes the loss, a scalar tensor, got a float", engine.backward, 1.0)
        stranger = Net()(torch.ones(4, 4)).mean()
        self.raises(capstan.RuntimeFault, "the loss does not come from this engine's model", engine.backward, stranger)
        self.raises(capstan.RuntimeFault, "the loss depends on no trainable parameter", engine.backward, out.detach().mean())
        engine.backward(out.mean())
        engine.step()

    def test_in_parameters_that_were_replaced(self):
        engine = engine_of()
        engine.module.inner.weight = torch.nn.Parameter(torch.zeros(4, 4))
        engine.backward(engine(torch.ones(4, 4)).mean())
        self.raises(capstan.RuntimeFault, "parameter 'inner.weight' was replaced after initialize()", engine.step)

    def test_in_the_processes(self):
        starts = f"capstan.initialize(model=torch.nn.Linear(2, 2), config={config()!r})"
        for environment, call, text in (
                ({"WORLD_SIZE": "2", "RANK": "0"}, starts, "nothing says where the processes meet"),
                ({"WORLD_SIZE": "2"}, starts, "but RANK is not set"),
                ({"WORLD_SIZE": "2", "RANK": "0"}, "capstan.init_distributed()", "there are 2 processes, and MASTER_ADDR is not set"),
                ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "capstan.init_distributed()",
                 "there are 2 processes, and MASTER_PORT is not set")):
            code = "import torch, capstan\n" + call
            result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **environment}, text=True,
                                    capture_output=True, timeout=120)
            self.assertEqual(result.returncode, 1)
            self.assertIn("RuntimeFault", result.stderr)
            self.assertIn(text, result.stderr)

    def test_in_torch_and_the_interpreter(self):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "other", "torch")
        os.makedirs(folder)
        with open(os.path.join(folder, "__init__.py"), "w", encoding="utf-8") as file:
            file.write("__version__ = '2.12.0+cpu'\n")
        path = os.pathsep.join([os.path.dirname(folder), os.environ["PYTHONPATH"]])
        result = subprocess.run([sys.executable, "-c", "import capstan"], env={**os.environ, "PYTHONPATH": path}, text=True,
                                capture_output=True, timeout=60)
        self.assertIn("was built with torch 2.11.0, and this is torch 2.12.0+cpu", result.stderr)
        code = "import sys; sys.version_info = type('V', (tuple,), {'major': 3, 'minor': 12})((3, 12)); import capstan"
        result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
        self.assertRegex(result.stderr, r"was built for Python 3\.\d+, and this is Python 3\.12. Install the wheel whose name has "
                                        "cp312")

    def test_in_what_is_asked_of_the_stand_in_for_deepspeed(self):
        expected = {
            "import deepspeed; deepspeed.pipe": "deepspeed.pipe: pipeline parallelism is not here; ZeRO partitions the model",
            "import deepspeed; deepspeed.init_inference()": "deepspeed.init_inference: DeepSpeed-Inference is not here",
            "import deepspeed.moe.layer": "deepspeed.moe: mixture-of-experts layers of DeepSpeed are not here",
            "import deepspeed.ops.transformer": "is not among what transformers and accelerate use of DeepSpeed",
            "import deepspeed; deepspeed.initialize(model=3, config={})": "model: must be a torch.nn.Module, got int",
            "from deepspeed.utils import safe_update_full_grad_vectorized":
                "safe_update_full_grad_vectorized: is not here; deepspeed.utils.safe_set_full_grad sets the gradient of one",
            "from deepspeed.runtime.lr_schedules import WarmupLR": "WarmupLR: is not here; schedules are named in the configuration's section",
            "from deepspeed import DeepSpeedConfig": "ImportError: deepspeed.DeepSpeedConfig: is not here; engine.config is the configuration",
            "from deepspeed.ops.lion import FusedLion": "deepspeed.ops.lion: is not here; name the type Lion in the configuration's section",
            "from deepspeed.utils.zero_to_fp32 import main": "deepspeed.utils.zero_to_fp32: is not here; 'capstan export --checkpoint DIR",
            "from deepspeed import zero, no_such_name": "ImportError: deepspeed.no_such_name: is not among what transformers",
            "import deepspeed; raise ValueError(hasattr(deepspeed, 'pipe'))": "ValueError: False",
        }
        told, _ = in_processes(1, "stand_in.py", json.dumps(list(expected)))
        for code, text in expected.items():
            self.assertIn(text, told[0][code], code)

    def test_in_leaf_modules(self):
        call = "import torch; from deepspeed.utils import set_z3_leaf_modules as leaf; net = torch.nn.Sequential(torch.nn.Linear(8, 4)); "
        codes = [call + "raise ValueError(leaf(net, [torch.nn.Linear])[0] is net[0])", call + "leaf(net, ['Moe'])"]
        told, result = in_processes(1, "stand_in.py", json.dumps(codes))
        self.assertEqual([told[0][code] for code in codes], [
            "ValueError: True", "ValueError: set_z3_leaf_modules: the model has no module of Moe."])
        self.assertIn("stage3_param_persistence_threshold above 32, the size of the largest parameter there", result.stderr)

    def test_in_importing_the_stand_in_too_late(self):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "real", "deepspeed")
        os.makedirs(folder)
        with open(os.path.join(folder, "__init__.py"), "w", encoding="utf-8") as file:
            file.write("")
        path = os.pathsep.join([os.path.dirname(folder), os.environ["PYTHONPATH"]])
        for code, text in (("import deepspeed", f"the module deepspeed of {folder}/__init__.py is imported already"),
                           ("import accelerate.utils", "accelerate is imported already, and has found no deepspeed")):
            environment = {**os.environ, "PYTHONPATH": path if "deepspeed" in code else os.environ["PYTHONPATH"]}
            result = subprocess.run([sys.executable, "-W", "ignore", "-c", code + "; import capstan.deepspeed"], env=environment,
                                    text=True, capture_output=True, timeout=120)
            self.assertEqual(result.returncode, 1, code)
            self.assertIn(text, result.stderr)

    def test_in_a_plugin_of_another_abi(self):
        build = os.path.dirname(os.path.dirname(os.environ["CAPSTAN_TEST_PROGRAM"]))
        with open(os.path.join(build, "lib/capstan/plugins/optimizers/libcapstan_optimizer_lion.so"), "rb") as file:
            plugin = file.read()
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "plugins")
        os.makedirs(folder)
        with open(os.path.join(folder, "libcapstan_optimizer_lion.so"), "wb") as file:
            file.write(re.sub(rb'plugin = "1\.', b'plugin = "7.', plugin).replace(b'type = "Lion"', b'type = "Lior"'))
        keys = config(optimizer={"type": "Lior"}, capstan={"plugins": {"path": folder}})
        with self.assertRaises((capstan.ConfigError, capstan.PluginError)) as caught:
            capstan.initialize(model=Net(), config=keys)
        self.assertRegex(str(caught.exception), r"built for Capstan plugin ABI 7\.\d+, this engine speaks 1\.")

    def test_of_the_model_keep_their_type_and_traceback(self):
        class Own(Exception):
            pass

        engine = engine_of()
        thrown = Own("mine")
        try:
            engine(torch.ones(4, 4), fail=thrown)
            self.fail("nothing was raised")
        except Own as caught:
            self.assertIs(caught, thrown)
            self.assertIn("raise fail", "".join(traceback.format_exception(caught)))
        step(engine)  # the engine goes on
        with self.assertRaises(Own):
            engine.eval_batch(iter([{"x": torch.ones(4, 4), "fail": thrown}]), 1)
        step(engine)

    def test_of_code_in_backward_keep_their_type(self):
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise KeyError("mine")

        engine = engine_of()
        with self.assertRaises(KeyError):
            engine.backward(Bad.apply(engine(torch.ones(4, 4))).mean())
        self.raises(capstan.RuntimeFault, "Load a checkpoint before training goes on", engine, torch.ones(4, 4))

    def test_of_copies(self):
        engine = engine_of()
        for copied in (copy.deepcopy, pickle.dumps):
            self.raises(capstan.RuntimeFault, "an engine cannot be copied or pickled", copied, engine)

    def test_after_the_end(self):
        engine = engine_of()
        engine.destroy()
        self.raises(capstan.RuntimeFault, "engine.destroy() has ended this engine", engine, torch.ones(4, 4))
        engine.destroy()

    def test_of_train_batch(self):
        engine = engine_of()
        self.raises(capstan.RuntimeFault, "takes an iterator of micro-batches, got a list", engine.train_batch, [1])
        self.raises(capstan.RuntimeFault, "the iterator has ended", engine.train_batch, iter([]))
        self.raises(TypeError, "returned a int without a loss", capstan.engine.loss_of, 3)


if __name__ == "__main__":
    unittest.main()
