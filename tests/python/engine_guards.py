"""What would lose work, run code or crash, and is a sentence in its place."""

import base64
import copy
import io
import os

import torch

import capstan
import capstan.engine
from capstan import _states
from small_engine import Net, engine_of, step
from support import Fixture, config


class WhatWouldBeLost(Fixture):
    def test_within_a_gather_that_the_engine_ends_in(self):
        engine = engine_of()
        text = "destroy: parameters of this engine are gathered. Leave 'with engine.gather():' or capstan.zero.GatheredParameters " \
            "before the engine is destroyed, or initialize() makes another one of its model."
        with engine.gather(written_by=0):
            self.raises(capstan.RuntimeFault, text, engine.destroy)
            self.raises(capstan.RuntimeFault, text, engine_of, engine.module)
        with capstan.zero.GatheredParameters(engine.module.inner.weight):
            self.raises(capstan.RuntimeFault, text, engine.destroy)
        step(engine)
        step(engine_of(engine.module))
        self.raises(capstan.RuntimeFault, "has ended this engine", step, engine)
        engine.destroy()  # once more

    def test_in_parameters_that_are_unfrozen(self):
        net = Net()
        net.inner.requires_grad_(False)
        engine = engine_of(net)
        before = net.inner.weight.clone()
        step(engine)
        net.inner.requires_grad_(True)
        self.raises(capstan.RuntimeFault, "parameter 'inner.weight' was frozen when the engine was made and is trainable now, and this "
                    "engine would never train it. Make a new engine of the model", step, engine)
        self.assertTrue(torch.equal(before, net.inner.weight))
        step(engine_of(net))
        self.assertFalse(torch.equal(before, net.inner.weight))

    def test_is_dropped_by_zero_grad_alone(self):
        x = torch.arange(16.0).view(4, 4)
        plain = Net()
        engine = engine_of(plain2 := copy.deepcopy(plain), optimizer=torch.optim.SGD(plain2.parameters(), lr=0.1),
                           gradient_accumulation_steps=2, gradient_clipping=0)
        for bad in (1000.0, float("nan")):
            engine.backward(engine(x * bad).square().mean())
            engine.step()
            engine.zero_grad()
            loss = engine(x).square().mean()
            engine.backward(loss)
            engine.step()
            plain.zero_grad()
            (plain(x).square().mean() / 2).backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter -= 0.1 * parameter.grad
            self.assertAlmostEqual(engine._core.mean_loss(), loss.item(), places=5)
        self.assertEqual(engine.global_steps, 2)
        for one, other in zip(plain.parameters(), plain2.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


class CodeInCheckpoints(Fixture):
    """state.json looks like data, and its checksums are no secret."""

    def write(self, folder, state):
        file = io.BytesIO()
        torch.save(state, file)
        engine = engine_of(lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))
        step(engine)
        before, _states.packed = _states.packed, lambda *_: base64.b64encode(file.getvalue()).decode()
        capstan.engine.packed = _states.packed
        try:
            engine.save_checkpoint(folder)
        finally:
            capstan.engine.packed = _states.packed = before

    def test_is_not_run(self):
        class Payload:
            def __reduce__(self):
                return ran_code, (ran_path,)

        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "payload")
        ran_path = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "ran")
        self.write(folder, {"last_epoch": Payload()})
        engine = engine_of(lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))
        self.raises(capstan.RuntimeFault, "/global_step1/state.json: client_state.capstan.python.lr_scheduler: is not a state of "
                    "numbers, texts, tuples, lists, dicts and tensors, and nothing else is read, because it could run code",
                    engine.load_checkpoint, folder)
        self.assertFalse(os.path.exists(ran_path))
        self.assertEqual(engine.global_steps, 0)  # nothing was taken over
        self.assertEqual(engine.load_checkpoint(folder, load_lr_scheduler_states=False)[1], {})
        self.assertEqual((engine.global_steps, os.path.exists(ran_path)), (1, False))

    def test_is_not_saved(self):
        class Own:
            optimizer = None

            def __init__(self, optimizer):
                self.optimizer = optimizer

            def step(self):
                pass

            def state_dict(self):
                return {"net": Net()}

        with self.assertLogs("capstan", "WARNING") as log:
            engine = engine_of(lr_scheduler=Own)
        text = "lr_scheduler Own: its state_dict() may hold numbers, texts, tuples, lists, dicts and tensors, because a checkpoint " \
            "must not run code when it is loaded"
        self.assertIn(text, log.output[0])
        step(engine)
        self.raises(capstan.RuntimeFault, text, engine.save_checkpoint, os.environ["CAPSTAN_TEST_FOLDER"] + "/own-schedule")


def ran_code(path):
    open(path, "w", encoding="utf-8").close()
