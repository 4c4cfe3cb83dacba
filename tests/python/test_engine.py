"""The engine in one process: the names of DeepSpeed's, and what each does."""

import copy
import gc
import os
import signal
import threading
import time
import unittest
import weakref
from collections import OrderedDict

import torch

import capstan
from models import Transformer, batches, next_token_loss, tokens
from plain_backward import BackwardOfATensor  # noqa: F401  tests of this process too
from small_engine import Net, engine_of, step
from support import Fixture, config, values_hash


class Head(torch.nn.Module):
    """An embedding and a head, whose loss is Capstan's operator or torch's own."""

    def __init__(self, by_operator):
        super().__init__()
        self.by_operator = by_operator
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50)

    def forward(self, ids, labels):
        hidden = self.embedding(ids).tanh()
        if self.by_operator:
            return torch.ops.capstan.linear_cross_entropy(hidden, self.head.weight, self.head.bias, labels, softcap=5.0)
        logits = 5 * torch.tanh(self.head(hidden) / 5)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TheHead(Fixture):
    def losses(self, by_operator):
        torch.manual_seed(5)
        engine = engine_of(Head(by_operator), capstan={"run": {"loss_chunk": 2000}})
        ids = torch.arange(4 * 9).view(4, 9)
        labels = ids.roll(1).masked_fill(ids % 7 == 0, -100)
        losses = []
        for _ in range(3):
            loss = engine(ids, labels)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        return losses, loss.grad_fn.name()

    def test_trains_by_the_operator_in_chunks_as_by_torch(self):
        (found, node), (expected, _) = self.losses(True), self.losses(False)
        self.assertIn("LinearCrossEntropy", node)
        for ours, theirs in zip(found, expected):
            self.assertAlmostEqual(ours, theirs, places=5)


class TheEngine(Fixture):
    def test_trains_by_whole_steps_and_evaluates(self):
        class Loss(Net):
            def forward(self, x):
                return {"loss": super().forward(x).square().mean(), "seen": self.training}

        torch.manual_seed(0)  # a network whose outputs are near 0 already would step past them
        engine = engine_of(Loss(), gradient_accumulation_steps=2)
        x = torch.ones(4, 4)
        before = engine.eval_batch(iter([{"x": x}]), 1)
        self.assertTrue(engine.module.training)
        first = engine.train_batch(iter([(x,), {"x": x}]))
        self.assertAlmostEqual(before.item(), first.item(), places=6)
        self.assertLess(engine.train_batch(iter([x, x])).item(), first.item())
        self.assertEqual((engine.global_steps, engine.global_samples), (2, 16))

    def test_counts_micro_batches_as_deepspeed_does(self):
        engine = engine_of(gradient_accumulation_steps=2)
        seen = []
        for _ in range(4):
            loss = engine(torch.ones(4, 4)).mean()
            seen.append(engine.is_gradient_accumulation_boundary())
            engine.backward(loss)
            seen.append(engine.is_gradient_accumulation_boundary())
            engine.step()
        self.assertEqual(seen, [False, False, True, True] * 2)
        self.assertEqual(engine.global_steps, 2)

    def test_takes_the_programs_word_for_the_boundary(self):
        plain, told = engine_of(gradient_accumulation_steps=2), engine_of(gradient_accumulation_steps=2)
        for last in (False, True):
            for engine in (plain, told):
                loss = engine(torch.ones(4, 4)).square().mean()
                if engine is told:
                    engine.set_gradient_accumulation_boundary(last)
                    engine.backward(loss / 2, scale_wrt_gas=False)
                    if last:
                        engine.step()
                else:
                    engine.backward(loss)
                    engine.step()
        self.assertEqual(values_hash(plain), values_hash(told))
        self.assertEqual(told.global_steps, 1)

    def test_adds_gradients_up_in_no_sync(self):
        x = torch.arange(16.0).view(4, 4)
        accumulated, synced = engine_of(), engine_of(stage=1)
        accumulated.backward(sum(accumulated(x * k).square().mean() for k in (1, 2)))
        with synced.no_sync():
            synced.backward(synced(x).square().mean())
        synced.backward(synced(x * 2).square().mean())
        for engine in (accumulated, synced):
            engine.step()
        for one, other in zip(accumulated.module.parameters(), synced.module.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    def test_shows_its_optimizer_and_schedule(self):
        engine = engine_of(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4,
                                                                    "warmup_type": "linear"}})
        rates = []
        for _ in range(3):
            step(engine)
            rates.append(engine.optimizer.param_groups[0]["lr"])
            self.assertEqual(engine.get_lr(), engine.lr_scheduler.get_last_lr())
            self.assertEqual(rates[-1], engine.get_lr()[0])
        self.assertEqual(sorted(set(rates)), rates)
        group = engine.optimizer.param_groups[0]
        self.assertEqual([id(p) for p in group["params"]], [id(p) for p in engine.module.parameters()])
        self.assertEqual(tuple(group["betas"]), (0.9, 0.95))
        self.assertEqual(engine.get_mom(), [(0.9, 0.95)])
        engine.optimizer.zero_grad()
        engine.optimizer.step()
        group["lr"] = 1.0
        step(engine)
        self.assertLess(group["lr"], 1.0)  # the schedule's word counts

    def test_takes_a_schedule_of_torchs(self):
        net, plain = Net(), Net()
        plain.load_state_dict(net.state_dict())
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        engine, _, _, ours = capstan.initialize(
            model=net, config=config(), lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        for i in range(6):
            x = torch.full((4, 4), 1.0 + i)
            loss = plain(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step(engine, x)
            self.assertEqual(engine.get_lr(), schedule.get_last_lr())
        self.assertIsInstance(ours, torch.optim.lr_scheduler.StepLR)
        for one, other in zip(net.parameters(), plain.parameters()):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6)

    def train_with(self, make, stage):
        keys = config(stage)
        del keys["optimizer"]
        results = []
        for ours in (False, True):
            torch.manual_seed(3)
            net = Net()
            optimizer = make(net)
            engine = capstan.initialize(model=net, config=keys, optimizer=optimizer)[0] if ours else None
            for i in range(5):
                x = torch.full((4, 4), 1.0 + i)
                if ours:
                    step(engine, x)
                    continue
                net(x).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            results.append([p.detach().clone() for p in net.parameters()])
        for one, other in zip(*results):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)

    def test_takes_optimizers_of_torchs_by_the_plugin_of_their_name(self):
        def in_groups(net):
            return torch.optim.AdamW([{"params": net.inner.parameters(), "weight_decay": 0.5},
                                      {"params": net.outer.parameters(), "lr": 0.03}], lr=0.01)

        self.train_with(in_groups, 2)
        self.train_with(lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 1)
        self.train_with(lambda net: torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1), 0)

    def test_runs_any_other_optimizer_at_stage_0(self):
        class Sign(torch.optim.Optimizer):
            def __init__(self, params, lr=0.01):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                            p.sub_(p.grad.sign() * group["lr"] / self.state[p]["steps"])

        self.train_with(lambda net: Sign(net.parameters()), 0)
        keys = config()
        del keys["optimizer"]
        net = Net()
        engine = capstan.initialize(model=net, config=keys, optimizer=Sign(net.parameters()))[0]
        step(engine)
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "own")
        engine.save_checkpoint(folder)
        step(engine)
        expected = values_hash(engine)
        engine.load_checkpoint(folder)
        step(engine)
        self.assertEqual(values_hash(engine), expected)
        net = Net()
        self.raises(capstan.ConfigError, "the file and the program disagree", capstan.initialize, model=net, config=config(),
                    optimizer=torch.optim.SGD(net.parameters(), lr=1))

    def test_saves_and_goes_on_bit_for_bit(self):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "ckpt")
        data = batches(tokens, 4, 4)

        def run(engine, some):
            for batch in some:
                engine.backward(next_token_loss(engine, batch))
                engine.step()

        torch.manual_seed(1)
        whole = capstan.initialize(model=Transformer(), config=config())[0]
        run(whole, data[:2])
        whole.save_checkpoint(folder, client_state={"place": [1, 2]})
        run(whole, data[2:])
        torch.manual_seed(99)
        resumed = capstan.initialize(model=Transformer(), config=config())[0]
        path, state = resumed.load_checkpoint(folder)
        self.assertEqual((path, state), (os.path.join(folder, "global_step2"), {"place": [1, 2]}))
        run(resumed, data[2:])
        self.assertEqual(values_hash(whole), values_hash(resumed))
        self.assertEqual(resumed.load_checkpoint(folder + "-none"), (None, {}))
        self.raises(capstan.RuntimeFault, "client_state must be texts, numbers, lists and dicts", whole.save_checkpoint, folder,
                    client_state={"net": Net()})

    def test_gives_data_in_an_order_that_resuming_keeps(self):
        data = torch.arange(12.0)
        engine, _, loader, _ = capstan.initialize(model=torch.nn.Linear(1, 1), config=config(train_micro_batch_size_per_gpu=3),
                                                  training_data=data)
        self.assertEqual(len(loader), 4)
        seen = []
        for batch in loader:
            seen.append(batch.tolist())
            engine.backward(engine(batch.view(-1, 1)).mean())
            engine.step()
            if len(seen) == 2:
                engine.save_checkpoint(os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "order"))
        self.assertEqual(sorted(sum(seen, [])), data.tolist())
        self.assertNotEqual(sum(seen, []), data.tolist())
        engine.load_checkpoint(os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "order"))
        self.assertEqual(next(iter(loader)).tolist(), seen[2])

    def test_lives_beside_workers_that_fork(self):
        engine = engine_of()

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                if index == 5:
                    try:
                        engine(torch.ones(4, 4))
                        return torch.full((4,), -1.0)
                    except capstan.RuntimeFault as error:
                        assert "forked" in str(error)
                return torch.full((4,), float(index))

        loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)
        for _ in range(2):
            rows = []
            for batch in loader:
                rows += batch[:, 0].tolist()
                step(engine, batch)
            self.assertEqual(rows, [float(i) for i in range(8)])

    def test_trains_in_threads_beside_another(self):
        engines = [engine_of() for _ in range(2)]
        alone = engine_of()

        def train(engine):
            for i in range(20):
                step(engine, torch.full((4, 4), 1.0 + i))

        threads = [threading.Thread(target=train, args=(engine,)) for engine in engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        train(alone)
        self.assertEqual([values_hash(engine) for engine in engines], [values_hash(alone)] * 2)

    def test_is_driven_by_a_thread_that_did_not_make_it(self):
        engine = engine_of()
        thread = threading.Thread(target=step, args=(engine,))
        thread.start()
        thread.join()
        self.assertEqual(engine.global_steps, 1)

    def test_ends_when_nobody_holds_it(self):
        engines = []
        for _ in range(30):
            engine = engine_of()
            engines.append(weakref.ref(engine))
            step(engine)
            net = engine.module
            net.engine_of_mine = [engine]  # a circle
            del engine, net
        gc.collect()
        self.assertEqual([engine() for engine in engines], [None] * 30)

    def test_takes_an_interrupt_between_steps(self):
        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                signal.raise_signal(signal.SIGINT)
                for _ in range(1000):
                    time.time()
                return gradient

        # A shell ignores the signal in what it starts in the background.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        engine = engine_of()
        with self.assertRaises(KeyboardInterrupt):
            engine.backward(Slow.apply(engine(torch.ones(4, 4))).mean())
        engine.step()  # backward has ended whole
        self.assertEqual(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        step(engine)

    def test_moves_schedules_on_before_an_interrupt(self):
        class Interrupted(torch.optim.SGD):
            def step(self, closure=None):
                signal.raise_signal(signal.SIGINT)
                return super().step(closure)

        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        keys = config()
        del keys["optimizer"]
        net = Net()
        engine, _, _, schedule = capstan.initialize(
            model=net, config=keys, optimizer=Interrupted(net.parameters(), lr=0.1),
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        engine.backward(engine(torch.ones(4, 4)).mean())
        with self.assertRaises(KeyboardInterrupt):
            engine.step()
        self.assertEqual((engine.global_steps, schedule.last_epoch, schedule.get_last_lr()), (1, 1, [0.05]))

    def test_leaves_interrupts_to_a_handler_of_the_programs(self):
        class Interrupted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                signal.raise_signal(signal.SIGINT)
                seen.append("backward")
                return gradient

        seen = []
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, lambda *_: seen.append("handler")))
        engine = engine_of()
        engine.backward(Interrupted.apply(engine(torch.ones(4, 4))).mean())
        self.assertEqual(seen, ["handler", "backward"])
        engine.step()

    def test_trains_in_bf16(self):
        engine = engine_of(bf16={"enabled": True})
        self.assertEqual(engine.module.inner.weight.dtype, torch.bfloat16)
        x = torch.ones(4, 4, dtype=torch.bfloat16)
        losses = [step(engine, x) for _ in range(5)]
        self.assertLess(losses[-1], losses[0])
        self.assertTrue(engine.bfloat16_enabled())

    def test_trains_batch_norm_in_16_bits(self):
        class Normalised(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.outer = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
                self.norm, self.tracked = torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(1, affine=True, track_running_stats=True)
                self.register_buffer("angles", torch.rand(4) / 3)

            def forward(self, x):
                x = self.norm(self.inner((x * self.angles).to(self.inner.weight.dtype)))
                return self.outer(self.tracked(x.unsqueeze(1)).squeeze(1))

        for section, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            torch.manual_seed(5)
            net = Normalised()
            plain = copy.deepcopy(net).to(dtype)
            plain.angles = net.angles.clone()
            x = torch.randn(8, 4)
            engine = engine_of(net, **{section: {"enabled": True}})
            self.assertTrue(engine(x).equal(plain(x)))
            for name, buffer in plain.named_buffers():
                self.assertEqual(net.get_buffer(name).dtype, buffer.dtype, name)
                self.assertTrue(net.get_buffer(name).equal(buffer), name)
            engine = engine_of(net, **{section: {"enabled": True, **({"initial_scale_power": 4} if section == "fp16" else {})}})
            losses = [step(engine, x) for _ in range(20)]
            self.assertLess(losses[-1], losses[0] / 2)
            self.assertGreater(len({value.item() for value in net.norm.running_var}), 1)

    def test_knows_its_gradients_norm(self):
        engine = engine_of(gradient_clipping=0)
        self.assertIsNone(engine.get_global_grad_norm())
        net = copy.deepcopy(engine.module)
        net(torch.ones(4, 4)).square().mean().backward()
        step(engine)
        expected = torch.stack([p.grad.norm() for p in net.parameters()]).norm().item()
        self.assertAlmostEqual(engine.get_global_grad_norm(), expected, places=5)

    def test_computes_no_norm_where_the_configuration_says_so(self):
        engine = engine_of(gradient_clipping=0, zero_optimization={"compute_grad_norm": False})
        for _ in range(3):
            step(engine)
            self.assertIsNone(engine.get_global_grad_norm())

    def test_keeps_buffers_in_fp32_that_a_model_of_transformers_names(self):
        class Routed(torch.nn.Module):
            _keep_in_fp32_modules_strict = ["correction*bias"]
            _keep_in_fp32_modules = ["angles"]

            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(4, 1)
                for name in ("correction_e_bias", "angles", "plain"):
                    self.register_buffer(name, torch.ones(4))

            def forward(self, x):
                return self.inner((x * self.correction_e_bias * self.angles * self.plain).to(self.inner.weight.dtype))

        for section, given, kept in (("bf16", "auto", {"outer.correction_e_bias"}),
                                     ("fp16", "auto", {"outer.correction_e_bias", "outer.angles"}),
                                     ("fp16", [], set()), ("bf16", ["outer.p*n"], {"outer.plain"})):
            net = torch.nn.Sequential(OrderedDict(outer=Routed()))
            engine = engine_of(net, **{section: {"enabled": True}},
                               data_types={"buffer_dtype": section, "keep_in_fp32_modules": given})
            step(engine)
            self.assertEqual({name for name, buffer in net.named_buffers() if buffer.dtype == torch.float32}, kept)

    def test_hands_the_model_over_to_another(self):
        net = Net()
        first = engine_of(net)
        step(first)
        second = engine_of(net)
        step(second)
        self.raises(capstan.RuntimeFault, "has ended this engine", first, torch.ones(4, 4))


class Layers(Fixture):
    def test_are_wrapped_where_a_component_asks(self):
        torch.manual_seed(1)
        plain = capstan.initialize(model=Transformer(), config=config())[0]
        torch.manual_seed(1)
        recomputed = capstan.initialize(model=Transformer(), config=config(capstan={"recompute": {"every": 1}}))[0]
        self.assertIn("forward", recomputed.module.blocks[0].__dict__)
        for engine in (plain, recomputed):
            for batch in batches(tokens, 2, 4):
                engine.backward(next_token_loss(engine, batch))
                engine.step()
        self.assertEqual(values_hash(plain), values_hash(recomputed))
        recomputed.destroy()
        self.assertNotIn("forward", recomputed.module.blocks[0].__dict__)

    def test_are_functions_outside_of_an_engine(self):
        x = torch.ones(2)
        self.assertEqual(capstan.layer("a", x, lambda h: h + 1).tolist(), [2, 2])
        self.assertEqual(capstan.checkpoint(lambda h: h * 3, x).tolist(), [3, 3])


if __name__ == "__main__":
    unittest.main()
