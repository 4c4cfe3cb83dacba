"""What initialize() returns beside the engine: the engine's optimizer and schedule in the shape of torch's."""

from collections import defaultdict

import torch


class OptimizerView(torch.optim.Optimizer):
    """The engine's optimizer. `param_groups` has its parameters and numbers: `lr` may be written where the configuration
    has no scheduler, and counts from the next update on. engine.step() updates; step() and zero_grad() do nothing, and
    `state` is empty, because the states are the engine's, in parts, in its checkpoints."""

    def __init__(self, core, parameters, param_groups=None):
        # Not torch's constructor, whose add_param_group() loads the whole of torch.compile.
        self._core = core
        self.state = defaultdict(dict)
        self._index_of = []  # the engine's group of each of these
        self._own = param_groups is not None
        groups = core.groups()
        group_of = {name: index for index, (_, names) in enumerate(groups) for name in names}
        if param_groups is None:
            param_groups = [
                {"params": [parameters[name] for name in names if name in parameters], **_plain(numbers)}
                for numbers, names in groups
            ]
            self._index_of = list(range(len(groups)))
        else:
            name_of = {id(parameter): name for name, parameter in parameters.items()}
            for group in param_groups:
                found = [group_of[name_of[id(p)]] for p in group["params"] if name_of.get(id(p)) in group_of]
                self._index_of.append(found[0] if found else None)
        self.param_groups = param_groups
        self.defaults = {key: value for key, value in param_groups[0].items() if key != "params"} if param_groups else {}
        self._rates = [group.get("lr") for group in param_groups]
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._optimizer_state_dict_pre_hooks, self._optimizer_state_dict_post_hooks = {}, {}
        self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks = {}, {}

    def step(self, closure=None):
        """Does nothing: engine.step() updates."""

    def zero_grad(self, set_to_none=True):
        """Does nothing: the engine drops gradients when it has used them."""

    def add_param_group(self, param_group):
        raise RuntimeError(
            "the engine's parameter groups are made by initialize(): give model_parameters in groups, or rules in "
            "capstan.parameter_groups of the configuration."
        )

    @property
    def loss_scale(self):
        return self._core.last_step()[4]

    cur_scale = loss_scale

    @property
    def overflow(self):
        """Whether the last update was left out, because gradients were not finite."""
        return not self._core.last_step()[0]

    def take_rates(self):
        """Hands rates that the program has written to the engine."""
        rates = self._rates
        for place, group in enumerate(self.param_groups):
            rate = group.get("lr")
            if rate is not rates[place]:
                before, rates[place] = rates[place], rate
                if rate != before and self._index_of[place] is not None:
                    self._core.set_learning_rate(self._index_of[place], float(rate))

    def show_rates(self):
        """Shows the rates, and betas, that the engine's schedule has set."""
        groups = self._core.groups()
        for index, group in zip(self._index_of, self.param_groups):
            if index is not None:
                numbers = dict(groups[index][0])
                group["lr"] = numbers["lr"][0]
                if "betas" in numbers and "betas" in group:
                    group["betas"] = tuple(numbers["betas"])
        self._rates = [group.get("lr") for group in self.param_groups]


def _plain(numbers):
    return {name: values[0] if len(values) == 1 else tuple(values) for name, values in numbers}


class ScheduleView:
    """The schedule of the configuration, which engine.step() moves on."""

    def __init__(self, engine):
        self._engine = engine

    def step(self, *_args, **_kwargs):
        """Does nothing: engine.step() moves the schedule on."""

    def get_lr(self):
        """The rates that the next update uses, one a parameter group."""
        return self._engine.get_lr()

    get_last_lr = get_lr

    @property
    def last_batch_iteration(self):
        return self._engine._core.progress()[1]

    def state_dict(self):
        """Empty but for the number of updates: the schedule is a function of that, and in the engine's checkpoints."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        """Does nothing: engine.load_checkpoint() takes the schedule with it."""


class OwnOptimizer:
    """An optimizer of the program's, run in the place of a plugin at ZeRO stage 0."""

    def __init__(self, optimizer, parameters):
        self.optimizer = optimizer
        self._parameters = dict(parameters)  # what the optimizer updates, by name
        self._masters = {}

    def update(self, slots):
        used = []
        for name, master, gradient in slots:
            parameter = self._parameters[name]
            if parameter.data_ptr() != master.data_ptr():
                parameter = self._master_of(name, parameter, master)
            # A gradient has its parameter's type.
            parameter.grad = gradient
            used.append(parameter)
        with torch.enable_grad():
            self.optimizer.step()
        for parameter in used:
            parameter.grad = None

    def _master_of(self, name, parameter, master):
        """The float32 values stand in for a parameter of another type, as they do for an engine's own optimizers."""
        stand_in = torch.nn.Parameter(master)
        for group in self.optimizer.param_groups:
            group["params"] = [stand_in if one is parameter else one for one in group["params"]]
        self._parameters[name] = stand_in
        return stand_in
