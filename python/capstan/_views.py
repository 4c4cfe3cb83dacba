"""What initialize() returns beside the engine: the engine's optimizer and schedule in the shape of torch's."""

from collections import defaultdict

import torch

from capstan._core import RuntimeFault
from capstan._optimizers import numbers_of

_ABSENT = object()
_CHANGES_NOTHING = ("params", "foreach", "capturable", "fused")


class OptimizerView(torch.optim.Optimizer):
    """The engine's optimizer. `param_groups` has its parameters and numbers: what the program, or a schedule of torch's,
    writes there counts from the next update on, but for `lr` and `betas` where the configuration has a scheduler that sets
    them. engine.step() updates; step() and zero_grad() do nothing, and `state` is empty, because the states are the engine's,
    in parts, in its checkpoints."""

    def __init__(self, core, parameters, optimizer=None):
        # Not torch's constructor, whose add_param_group() loads the whole of torch.compile.
        self._core = core
        self.state = defaultdict(dict)
        groups = core.groups()
        if optimizer is None:
            self.param_groups = [
                {"params": [parameters[name] for name in names if name in parameters], **_plain(numbers)}
                for numbers, names in groups
            ]
            self._index_of = list(range(len(groups)))
        else:
            self.param_groups = optimizer.param_groups
            self._index_of = _indices(groups, parameters, optimizer.param_groups)
        self.defaults = {key: value for key, value in self.param_groups[0].items() if key != "params"} \
            if self.param_groups else {}
        self._follow(optimizer)
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._optimizer_state_dict_pre_hooks, self._optimizer_state_dict_post_hooks = {}, {}
        self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks = {}, {}
        self._opt_called = True  # schedules of torch's warn where step() was not called before theirs

    def _follow(self, optimizer):
        options = self.defaults if optimizer is None else optimizer.defaults
        # Numbers that the engine takes at any time, and options that it has taken for good.
        self._numbers = [name for name in self._core.group_numbers() if optimizer is None or name in options]
        self._fixed = [(group, key, group[key]) for group in self.param_groups for key in options
                       if key in group and key not in self._numbers and key not in (*_CHANGES_NOTHING, "lr", "betas")]
        self._seen = [{} for _ in self.param_groups]  # of each group, what the engine has: object and numbers
        engine = [dict(numbers) for numbers, _ in self._core.groups()]
        for seen, index in zip(self._seen, self._index_of):
            for name in self._numbers:
                seen[name] = (_ABSENT, engine[index].get(name) if index is not None else None)

    def step(self, closure=None):
        """Does nothing: engine.step() updates."""

    def zero_grad(self, set_to_none=True):
        """Does nothing: the engine drops gradients when it has used them. engine.zero_grad() drops those of a step under way."""

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

    def take(self):
        """Hands numbers that the program has written to the engine. Raises RuntimeFault for what cannot change."""
        if len(self.param_groups) != len(self._seen):
            raise RuntimeFault(
                f"optimizer: has {len(self.param_groups)} parameter groups, and had {len(self._seen)} at initialize(): the engine "
                "would not train by the others. Make a new engine with all of them.")
        for place, (group, seen) in enumerate(zip(self.param_groups, self._seen)):
            for name, (last, _) in seen.items():
                value = group.get(name, _ABSENT)
                # Lists and tensors may have changed in place.
                if value is not last or type(value) not in (float, int, tuple):
                    self._take_number(place, name, value)
        for group, key, value in self._fixed:
            if group[key] is not value and group[key] != value:
                raise RuntimeFault(f"optimizer: '{key}' was {value} at initialize() and is {group[key]} now: it cannot change "
                                   "after that. Make a new engine.")

    def _take_number(self, place, name, value):
        if value is _ABSENT:
            return
        numbers, seen = numbers_of(value), self._seen[place]
        if numbers is None:
            if value is None:
                return
            raise RuntimeFault(f"optimizer: '{name}' of parameter group {place} must be a number, got {value!r}.")
        if numbers != seen[name][1] and self._index_of[place] is not None:
            self._core.set_group_number(self._index_of[place], name, numbers)
        # A tuple may hold a tensor.
        plain = type(value) is not tuple or not any(isinstance(item, torch.Tensor) for item in value)
        seen[name] = (value if plain else _ABSENT, numbers)

    def show(self):
        """Shows the numbers that the engine has: those that its schedule has set, or a checkpoint."""
        engine = [dict(numbers) for numbers, _ in self._core.groups()]
        for place, (index, group) in enumerate(zip(self._index_of, self.param_groups)):
            for name, numbers in engine[index].items() if index is not None else ():
                if name not in group or numbers_of(group[name]) in (None, numbers):
                    continue
                if isinstance(group[name], torch.Tensor):
                    group[name].fill_(numbers[0])
                else:
                    group[name] = tuple(numbers) if isinstance(group[name], (list, tuple)) else numbers[0]
                if name in self._seen[place]:
                    self._seen[place][name] = (group[name], numbers)


def _indices(groups, parameters, param_groups):
    """The engine's group of each of a program's; None: none of its parameters are trained."""
    group_of = {name: index for index, (_, names) in enumerate(groups) for name in names}
    name_of = {id(parameter): name for name, parameter in parameters.items()}
    indices = []
    for group in param_groups:
        found = [group_of[name_of[id(p)]] for p in group["params"] if name_of.get(id(p)) in group_of]
        indices.append(found[0] if found else None)
    return indices


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
