"""Optimizers, parameter groups and schedules of a program train as in plain PyTorch, or are refused by the option's name."""

import functools
import inspect
import os
import unittest
import warnings

import torch
from torch import optim
from torch.optim import lr_scheduler

import capstan
from capstan._optimizers import translation_of
from support import Fixture

STEPS = 6


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = torch.nn.Linear(6, 5)
        self.head = torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class Matrices(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = torch.nn.Linear(6, 5, bias=False)

    def forward(self, x):
        return torch.tanh(self.body(x))


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.rows = torch.nn.Embedding(9, 4, sparse=True)

    def forward(self, x):
        return self.rows(x)


def inputs(net, steps=STEPS):
    generator = torch.Generator().manual_seed(3)
    if isinstance(net, Embedded):
        return [torch.randint(0, 9, (4,), generator=generator) for _ in range(steps)]
    return [torch.randn(4, 6, generator=generator) for _ in range(steps)]


def loss_of(out, place):
    return (out - 0.5 * place).square().mean()


def values(net):
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def plain(make, schedule=None, steps=STEPS, build=Net, clip=0.0, metrics=False):
    """Values, and the rates of each step, of plain PyTorch."""
    net = build()
    optimizer = make(net)
    schedule = schedule(optimizer) if schedule else None
    rates = []
    for place, x in enumerate(inputs(net, steps)):
        loss = loss_of(net(x), place)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        if schedule is not None:
            schedule.step(*([loss.item()] if metrics else []))
    return values(net), rates


def config(**keys):
    return {"train_batch_size": 4, "steps_per_print": None, "gradient_clipping": 0, **keys}


def ours(make, schedule=None, steps=STEPS, build=Net, as_function=False, metrics=False, **keys):
    """The same of an engine."""
    net = build()
    optimizer = make(net)
    if schedule is not None and not as_function:
        schedule = schedule(optimizer)
    engine = capstan.initialize(model=net, optimizer=optimizer, lr_scheduler=schedule, config=config(**keys))[0]
    rates = []
    for place, x in enumerate(inputs(net, steps)):
        loss = loss_of(engine(x), place)
        engine.backward(loss)
        rates.append(engine.get_lr())
        engine.step(lr_kwargs={"metrics": loss.item()} if metrics else None)
    found = values(net)
    engine.destroy()
    return found, rates


def apart(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# For each option of torch's optimizers a value that is not its default; None: it chooses an implementation of the same update.
OPTIONS = {
    "lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.3, "amsgrad": True, "momentum": 0.7, "dampening": 0.2,
    "nesterov": True, "lambd": 0.2, "alpha": 0.6, "t0": 2.0, "rho": 0.7, "lr_decay": 0.4, "initial_accumulator_value": 0.3,
    "momentum_decay": 0.2, "decoupled_weight_decay": True, "centered": True, "etas": (0.4, 1.4), "step_sizes": (1e-3, 0.02),
    "beta2_decay": -0.5, "d": 1.2, "ns_coefficients": (3.0, -4.0, 2.0), "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw",
    "foreach": True, "capturable": True, "fused": True,
}
IMPLEMENTATIONS = ("foreach", "capturable", "fused")
OF_CLASS = {"Adafactor": {"eps": (1e-2, 1e-2)}, "Adadelta": {"lr": 0.5}, "Rprop": {"lr": 0.005},
            "Muon": {"nesterov": False, "eps": 50.0}}
REFUSED = {"maximize": "optimizer: maximize=True of {} is not known here (parameter group 0). Take the loss with a minus sign.",
           "differentiable": "optimizer: differentiable=True of {} is not known here (parameter group 0). Updates here are outside "
                             "of autograd: leave it False."}
# What goes with no other option.
APART = {"SGD": [{"momentum": 0.7, "nesterov": True, "lr": 0.03}]}
BUILD = {"Muon": Matrices, "SparseAdam": Embedded}


def options_of(kind):
    return [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "params")]


def classes(module, base):
    found = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    return {name: kind for name, kind in found.items() if kind is not base and not name.startswith("_")}


class OptimizersOfTorch(Fixture):
    def check(self, name, options, **keys):
        kind, build = getattr(optim, name), BUILD.get(name, Net)
        keys = {**keys, **({"sparse_gradients": True} if name == "SparseAdam" else {})}
        expected = plain(lambda net: kind(net.parameters(), **options), build=build)[0]
        found = ours(lambda net: kind(net.parameters(), **options), build=build, **keys)[0]
        self.assertLess(apart(expected, found), 2e-5 if name == "Muon" else 3e-6, f"{name}, {options}")
        return expected

    def test_train_with_their_defaults(self):
        for name in classes(optim, optim.Optimizer):
            if name != "LBFGS":
                self.check(name, {})

    def test_train_with_every_option_away_from_its_default(self):
        for name, kind in classes(optim, optim.Optimizer).items():
            if name == "LBFGS":
                continue
            apart_ones = [option for one in APART.get(name, []) for option in one if option not in ("lr", "momentum")]
            chosen = {option: OF_CLASS.get(name, {}).get(option, OPTIONS[option]) for option in options_of(kind)
                      if option not in (*REFUSED, *IMPLEMENTATIONS, *apart_ones)}
            expected = self.check(name, chosen)
            # t0 says from when on ASGD averages, which changes no weight.
            for option in [one for one in chosen if one != "t0"]:  # each of them counts in this run
                others = {key: value for key, value in chosen.items() if key != option}
                without = plain(lambda net: kind(net.parameters(), **others), build=BUILD.get(name, Net))[0]
                self.assertGreater(apart(expected, without), 1e-5, f"{name}: {option} has no effect in this test")
            for one in APART.get(name, []):
                self.check(name, one)

    def test_are_the_same_plugin_with_every_implementation(self):
        self.check("AdamW", {"fused": True})
        self.check("SGD", {"foreach": True})
        for name, kind in classes(optim, optim.Optimizer).items():
            net = Net()
            names = {id(parameter): path for path, parameter in net.named_parameters()}
            for option in [option for option in IMPLEMENTATIONS if option in options_of(kind)]:
                one, other = (translation_of(kind(net.parameters(), **{option: chosen}), names) for chosen in (True, False))
                self.assertEqual(one, other, f"{name}, {option}")

    def test_are_refused_by_the_options_that_are_not_here(self):
        for name, kind in classes(optim, optim.Optimizer).items():
            for option in options_of(kind):
                if option in REFUSED:
                    self.raises(capstan.ConfigError, REFUSED[option].format(name), ours,
                                lambda net: kind(net.parameters(), **{option: True}), build=BUILD.get(name, Net))
        self.raises(capstan.ConfigError, "optimizer: LBFGS calls the model again within an update", ours,
                    lambda net: optim.LBFGS(net.parameters()))
        self.raises(capstan.ConfigError, "optimizer: decoupled_weight_decay of Adam differs between parameter groups 0 and 1", ours,
                    lambda net: optim.Adam([{"params": net.body.parameters(), "decoupled_weight_decay": True},
                                            {"params": net.head.parameters()}], weight_decay=0.1))
        self.raises(capstan.ConfigError, "'SparseAdam' updates the rows of sparse gradients: set sparse_gradients true", ours,
                    lambda net: optim.SparseAdam(net.parameters()), build=Embedded)

    def test_that_have_trained_are_refused(self):
        for name in ("AdamW", "SGD", "Adagrad"):
            def trained(net):
                optimizer = getattr(optim, name)(net.parameters(), **({"momentum": 0.9} if name == "SGD" else {}))
                net(torch.ones(4, 6)).sum().backward()
                optimizer.step()
                return optimizer

            self.raises(capstan.ConfigError, f"optimizer: this {name} has trained already", ours, trained)


class AnOptimizerOverSomeParameters(Fixture):
    def test_trains_these_alone(self):
        make = {"head": lambda net: optim.AdamW(net.head.parameters(), lr=0.02, weight_decay=0.1),
                "own": lambda net: Sign([net.head.weight], lr=0.02),
                "groups": lambda net: optim.SGD([{"params": [net.head.weight]}, {"params": [net.body.bias], "lr": 0.1}], lr=0.02,
                                                momentum=0.9)}
        for name, one in make.items():
            for clip in (0.0, 0.05):
                for stage in (0,) if name == "own" else (0, 2):
                    expected = plain(one, clip=clip)[0]
                    found = ours(one, gradient_clipping=clip, zero_optimization={"stage": stage})[0]
                    self.assertLess(apart(expected, found), 3e-6, f"{name}, clipping {clip}, stage {stage}")
                    self.assertEqual(float((found["body.weight"] - Net().body.weight).abs().max()), 0.0)

    def test_leaves_gradients_of_the_others_to_the_program(self):
        net = Net()
        engine = capstan.initialize(model=net, optimizer=optim.AdamW(net.head.parameters()), config=config())[0]
        engine.backward(engine(torch.ones(4, 6)).mean())
        engine.step()
        self.assertIsNone(net.head.weight.grad)
        self.assertEqual(net.body.weight.grad.shape, (5, 6))
        engine.zero_grad()
        self.assertIsNone(net.body.weight.grad)

    def test_is_what_model_parameters_says_too(self):
        keys = config(optimizer={"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1, "torch_adam": True}})
        for given in (lambda net: list(net.head.parameters()), lambda net: list(net.head.named_parameters()),
                      lambda net: [{"params": net.head.parameters()}]):
            net = Net()
            engine = capstan.initialize(model=net, model_parameters=given(net), config=keys)[0]
            for place, x in enumerate(inputs(net)):
                engine.backward(loss_of(engine(x), place))
                engine.step()
            expected = plain(lambda net: optim.AdamW(net.head.parameters(), lr=0.02, weight_decay=0.1))[0]
            self.assertLess(apart(expected, values(net)), 3e-6)

    def test_is_kept_whole_by_a_checkpoint(self):
        folder = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "some")
        first, second = Net(), Net()
        torch.nn.init.ones_(second.body.weight)
        engines = [capstan.initialize(model=net, optimizer=optim.AdamW(net.head.parameters()), config=config())[0]
                   for net in (first, second)]
        step(engines[0])
        engines[0].save_checkpoint(folder)
        engines[1].load_checkpoint(folder)
        for engine in engines:
            step(engine)
        self.assertEqual(apart(values(first), values(second)), 0.0)

    def test_of_another_model_is_refused(self):
        self.raises(capstan.ConfigError, "optimizer: parameter group 0 has a tensor of shape [5, 6] that is not a parameter of the "
                    "model, and the engine would not train it. Make the optimizer of the model's own parameters", ours,
                    lambda net: optim.AdamW(Net().parameters()))
        extra = torch.nn.Parameter(torch.ones(3))
        self.raises(capstan.ConfigError, "model_parameters: parameter group 1 has a tensor of shape [3]", capstan.initialize,
                    model=(net := Net()), config=config(optimizer={"type": "AdamW"}),
                    model_parameters=[{"params": net.parameters()}, {"params": [extra]}])


class Sign(optim.Optimizer):
    """An optimizer of a program's own."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] / (p.grad.abs() + 0.1))


def step(engine, x=None):
    loss = engine(torch.ones(4, 6) if x is None else x).square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


def in_groups(kind, **options):
    return lambda net: kind([{"params": net.body.parameters()}, {"params": net.head.parameters(), "lr": 0.02}], lr=0.05, **options)


# For each schedule of torch every option away from its default.
SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, [lambda k: 0.5**k, lambda k: 1.0]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, [lambda k: 0.7, lambda k: 1.1]),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, milestones=[1, 4], gamma=0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.2, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, end_factor=0.9, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.6),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.2, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], milestones=[2]),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=4, power=2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4, eta_min=0.01),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.2, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], optimizer=o),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(
        o, mode="max", factor=0.3, patience=0, threshold=0.1, threshold_mode="abs", cooldown=1, min_lr=0.001, eps=1e-4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=[0.01, 0.02], max_lr=0.1, step_size_up=2, step_size_down=3, mode="exp_range", gamma=0.9, scale_mode="iterations",
        cycle_momentum=True, base_momentum=0.6, max_momentum=0.85),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2, eta_min=0.01),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=[0.1, 0.2], epochs=2, steps_per_epoch=4, pct_start=0.4, anneal_strategy="linear", cycle_momentum=True,
        base_momentum=0.7, max_momentum=0.9, div_factor=10.0, final_div_factor=100.0, three_phase=True),
}


class SchedulesOfTorch(Fixture):
    def test_move_the_numbers_of_every_group(self):
        self.assertEqual(set(classes(lr_scheduler, lr_scheduler.LRScheduler)), set(SCHEDULES))
        optimizers = (in_groups(optim.AdamW, weight_decay=0.1), in_groups(optim.SGD, momentum=0.8))
        for name, schedule in SCHEDULES.items():
            for as_function, make in enumerate(optimizers):
                metrics = name == "ReduceLROnPlateau"
                expected, rates = plain(make, schedule, metrics=metrics)
                self.assertGreater(len({tuple(one) for one in rates}), 1, f"{name} does not move")
                found, ours_rates = ours(make, schedule, metrics=metrics, as_function=bool(as_function))
                self.assertLess(apart(expected, found), 3e-6, f"{name}, {'function' if as_function else 'object'}")
                self.assertEqual(rates, ours_rates)

    def test_move_each_group_of_those_that_begin_alike(self):
        make = lambda net: optim.AdamW([{"params": net.body.parameters()}, {"params": net.head.parameters()}], lr=0.05)  # noqa: E731
        apart_ones = lambda o: lr_scheduler.LambdaLR(o, [lambda k: 1.0, lambda k: 0.1**k])  # noqa: E731
        for as_function in (False, True):
            expected, rates = plain(make, apart_ones)
            found, ours_rates = ours(make, apart_ones, as_function=as_function)
            self.assertEqual(rates, ours_rates)
            self.assertLess(apart(expected, found), 3e-6)

    def test_move_the_betas_where_nothing_else_is_said(self):
        one_cycle = lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=8)  # noqa: E731
        make = lambda net: optim.AdamW(net.parameters(), lr=0.01)  # noqa: E731
        for as_function in (False, True):
            self.assertLess(apart(plain(make, one_cycle)[0], ours(make, one_cycle, as_function=as_function)[0]), 3e-6)

    def test_move_rates_that_are_tensors(self):
        make = lambda net: optim.AdamW(net.parameters(), lr=torch.tensor(0.01))  # noqa: E731
        halved = lambda o: lr_scheduler.ExponentialLR(o, 0.5)  # noqa: E731
        for as_function in (False, True):
            expected, rates = plain(make, halved)
            found, ours_rates = ours(make, halved, as_function=as_function)
            self.assertLess(apart(expected, found), 3e-6)
            for one, other in zip(rates, ours_rates):
                self.assertAlmostEqual(one[0], other[0], places=9)

    def test_of_transformers_warm_up_from_a_rate_of_0(self):
        def rate(step, *, num_warmup_steps):
            return step / num_warmup_steps if step < num_warmup_steps else 1 - step / 10

        make = in_groups(optim.AdamW)
        warm_up = lambda o: lr_scheduler.LambdaLR(o, functools.partial(rate, num_warmup_steps=2), -1)  # noqa: E731
        for as_function in (False, True):
            expected, rates = plain(make, warm_up)
            found, ours_rates = ours(make, warm_up, as_function=as_function)
            self.assertEqual(rates, ours_rates)
            self.assertEqual(rates[0], [0.0, 0.0])
            self.assertLess(apart(expected, found), 3e-6)

    def test_that_the_program_moves_count_too(self):
        def run(engine_of):
            net = Net()
            optimizer = optim.AdamW(net.parameters(), lr=0.05)
            schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=8)
            engine = engine_of(net, optimizer)
            for place, x in enumerate(inputs(net)):
                loss = loss_of(net(x) if engine is None else engine(x), place)
                if engine is None:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                else:
                    engine.backward(loss)
                    engine.step()
                schedule.step()
                if engine is not None:
                    self.assertEqual(engine.get_lr(), schedule.get_last_lr())
                    self.assertEqual(engine.get_mom(), [optimizer.param_groups[0]["betas"]])
            return values(net)

        expected = run(lambda net, optimizer: None)
        found = run(lambda net, optimizer: capstan.initialize(model=net, optimizer=optimizer, config=config())[0])
        self.assertLess(apart(expected, found), 3e-6)

    def test_are_refused_where_they_would_move_nothing(self):
        net = Net()
        other = lr_scheduler.StepLR(optim.SGD(net.parameters(), lr=1), 2)
        self.raises(capstan.ConfigError, "lr_scheduler: this StepLR moves the rates of another optimizer than the engine's",
                    capstan.initialize, model=net, optimizer=optim.SGD(net.parameters(), lr=1), lr_scheduler=other, config=config())
        self.raises(capstan.ConfigError, "lr_scheduler: this StepLR moves the rates of another optimizer", capstan.initialize,
                    model=net, lr_scheduler=other, config=config(optimizer={"type": "SGD"}))
        self.raises(capstan.RuntimeFault, "step: ReduceLROnPlateau moves the rates by a metric, and none was given. Call "
                    "engine.step(lr_kwargs={\"metrics\": loss}).", ours, lambda net: optim.SGD(net.parameters(), lr=1),
                    SCHEDULES["ReduceLROnPlateau"])
        warm_up = lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.1 * k)  # noqa: E731

        def with_both(net):
            optimizer = optim.SGD(net.parameters(), lr=1)
            warm_up(optimizer)
            return optimizer

        self.raises(capstan.ConfigError, "scheduler: the configuration names 'WarmupLR', and the learning rate of parameter group 0 "
                    "is 0, as a schedule of the program's has set it.", ours, with_both, scheduler={"type": "WarmupLR"})

    def test_give_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for as_function in (False, True):
                ours(in_groups(optim.AdamW), SCHEDULES["StepLR"], as_function=as_function)
            net = Net()
            optimizer = optim.SGD(net.parameters(), lr=1)
            schedule = lr_scheduler.StepLR(optimizer, 2)
            step(capstan.initialize(model=net, optimizer=optimizer, config=config())[0])
            schedule.step()


class Resuming(Fixture):
    def folder(self):
        return os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], self.id().rpartition(".")[2])

    def engine_of(self, make, schedule, handed_over):
        net = Net()
        optimizer = make(net)
        schedule = schedule(optimizer)
        engine = capstan.initialize(model=net, optimizer=optimizer, config=config(),
                                    lr_scheduler=schedule if handed_over else None)[0]
        return engine, optimizer, schedule

    def check(self, make, schedule, handed_over):
        """Three updates after a checkpoint are those of a new engine that has loaded it, in bits and in rates."""
        def run(parts, some):
            engine, optimizer, schedule = parts
            rates = []
            for place in some:
                engine.backward(loss_of(engine(inputs(engine.module)[place]), place))
                engine.step()
                if not handed_over:
                    schedule.step()
                rates.append(engine.get_lr() + [float(group["lr"]) for group in optimizer.param_groups])
            return rates

        whole, rest = (self.engine_of(make, schedule, handed_over) for _ in range(2))
        run(whole, range(3))
        whole[0].save_checkpoint(self.folder())
        rest[0].load_checkpoint(self.folder())
        self.assertEqual(rest[0].get_lr(), whole[0].get_lr())
        if not handed_over:
            rest[2].load_state_dict(whole[2].state_dict())
        self.assertEqual(run(whole, range(3, 6)), run(rest, range(3, 6)))
        self.assertEqual(apart(values(whole[0].module), values(rest[0].module)), 0.0)

    def test_goes_on_at_the_rate_of_a_schedule_that_the_program_moves(self):
        self.check(in_groups(optim.AdamW), lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)), False)

    def test_goes_on_with_betas_and_tensors(self):
        make = lambda net: optim.AdamW(net.parameters(), lr=torch.tensor(0.01))  # noqa: E731
        self.check(make, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=8), False)

    def test_goes_on_with_every_schedule_of_torchs(self):
        for name, schedule in SCHEDULES.items():
            if name != "ReduceLROnPlateau":
                self.check(in_groups(optim.SGD, momentum=0.8), schedule, True)

    def test_goes_on_with_an_optimizer_of_the_programs_own(self):
        self.check(lambda net: Sign(net.parameters(), lr=0.1), lambda o: lr_scheduler.ExponentialLR(o, 0.5), True)

    def test_at_another_rate_of_the_configuration(self):
        engines = [capstan.initialize(model=(net := Net()), optimizer=optim.SGD(net.parameters(), lr=rate), config=config())[0]
                   for rate in (0.1, 0.05)]
        step(engines[0])
        engines[0].save_checkpoint(self.folder())
        engines[1].load_checkpoint(self.folder())
        self.assertEqual(engines[1].get_lr(), [0.05])


class NumbersThatTheProgramWrites(Fixture):
    def test_count_from_the_next_update_on(self):
        def write(groups, place):
            groups[0]["lr"] = 0.05 / (1 + place)
            groups[1]["weight_decay"] = 0.1 * place
            groups[0]["betas"] = (0.5, 0.9 + 0.01 * place)
            groups[1]["eps"] = 10.0 ** -(1 + place)

        def trained(ours_too):
            net = Net()
            optimizer = in_groups(optim.AdamW)(net)
            engine = capstan.initialize(model=net, optimizer=optimizer, config=config())[0] if ours_too else None
            for place, x in enumerate(inputs(net)):
                write(optimizer.param_groups, place)
                loss = loss_of(engine(x) if ours_too else net(x), place)
                if ours_too:
                    engine.backward(loss)
                    engine.step()
                else:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            return values(net)

        self.assertLess(apart(trained(False), trained(True)), 3e-6)

    def test_count_for_the_configurations_optimizer(self):
        keys = config(optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.5}})
        net = Net()
        engine, optimizer, _, _ = capstan.initialize(model=net, config=keys)
        before = values(net)
        optimizer.param_groups[0]["lr"] = 0
        step(engine)
        self.assertEqual(apart(before, values(net)), 0.0)
        optimizer.param_groups[0].update(lr=0.1, momentum=0.0, weight_decay=0.5)
        x = torch.ones(4, 6)
        plain_net = Net()
        plain_net(x).square().mean().backward()
        step(engine)
        for name, parameter in plain_net.named_parameters():
            expected = before[name] - 0.1 * (parameter.grad + 0.5 * before[name])
            torch.testing.assert_close(values(net)[name], expected, rtol=0, atol=1e-6)

    def test_beside_a_schedule_of_the_configuration(self):
        keys = config(optimizer={"type": "SGD", "params": {"lr": 0.1}}, scheduler={"type": "StepLR", "params": {"step_size": 1}})
        net = Net()
        engine, optimizer, _, _ = capstan.initialize(model=net, config=keys)
        x = torch.zeros(4, 6)
        optimizer.param_groups[0].update(lr=7.0, weight_decay=0.5)
        before = values(net)["body.weight"]
        step(engine, x)
        torch.testing.assert_close(values(net)["body.weight"], before * (1 - 0.1 * 0.5), rtol=0, atol=1e-7)
        self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.01)

    def test_that_cannot_change_are_refused_by_their_name(self):
        cases = (
            (lambda: optim.SGD, {"momentum": 0.9}, {"nesterov": True},
             "optimizer: 'nesterov' was False at initialize() and is True now: it cannot change after that. Make a new engine."),
            (lambda: optim.SGD, {}, {"momentum": 0.9},
             "parameter group 0: 'momentum' of optimizer 'SGD' was 0 when the engine was made, so that there is no state "
             "'momentum_buffer', which another value needs. Make the engine with a momentum other than 0."),
            (lambda: optim.AdamW, {}, {"betas": (0.9, 1.5)},
             "parameter group 0: 'betas' of optimizer 'AdamW'"),
            (lambda: optim.AdamW, {}, {"eps": float("nan")},
             "parameter group 0: 'eps' of optimizer 'AdamW' must be finite, got nan."),
            (lambda: optim.AdamW, {}, {"lr": -1.0}, "a learning rate of -1.000000: it must be finite and not below 0."),
            (lambda: optim.AdamW, {}, {"weight_decay": "much"},
             "optimizer: 'weight_decay' of parameter group 0 must be a number, got 'much'."),
            (lambda: optim.AdamW, {}, {"maximize": True}, "optimizer: 'maximize' was False at initialize() and is True now"),
            (lambda: optim.AdamW, {}, {"foreach": True, "initial_lr": 3, "mine": "x"}, None),
        )
        for kind, options, written, text in cases:
            net = Net()
            optimizer = kind()(net.parameters(), lr=0.1, **options)
            engine = capstan.initialize(model=net, optimizer=optimizer, config=config())[0]
            before = dict(optimizer.param_groups[0])
            optimizer.param_groups[0].update(written)
            engine.backward(engine(torch.ones(4, 6)).mean())
            if text is not None:
                self.raises(capstan.RuntimeFault, text, engine.step)
                optimizer.param_groups[0].update(before)
            engine.step()
            self.assertEqual(engine.global_steps, 1)
        self.raises(capstan.RuntimeFault, "parameter group 0: 'adam_w_mode' of optimizer 'AdamW' counts when the engine is made and "
                    "cannot change afterwards.", engine._core.set_group_number, 0, "adam_w_mode", [0])
        self.raises(capstan.RuntimeFault, "parameter group 0: optimizer 'AdamW' has no number 'momentum'.",
                    engine._core.set_group_number, 0, "momentum", [0])

    def test_are_those_of_the_groups_of_initialize(self):
        net = Net()
        optimizer = optim.AdamW(net.head.parameters())
        engine = capstan.initialize(model=net, optimizer=optimizer, config=config())[0]
        optimizer.add_param_group({"params": list(net.body.parameters())})
        self.raises(capstan.RuntimeFault, "optimizer: has 2 parameter groups, and had 1 at initialize()", step, engine)


if __name__ == "__main__":
    unittest.main()
