"""The engine of a model, with the names of DeepSpeed's."""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from capstan import _backward, _core, _devices, _distributed, _hooks, zero
from capstan._config import source_of
from capstan._core import ConfigError, RuntimeFault
from capstan._loader import loader_of, loss_of
from capstan._module import call, next_of, once, refuse_tied_data, refuse_wrapped, shown_of
from capstan._optimizers import is_translated, left_out, numbers_of, of_program
from capstan._states import RESERVED, check_schedule, packed, schedule_text, states_of, take_reserved
from capstan._views import OptimizerView, OwnOptimizer, ScheduleView

__all__ = ["Engine", "initialize"]

_log = logging.getLogger("capstan")


class Engine(torch.nn.Module):
    """Trains a module as a configuration says. Made by initialize(); one thread at a time drives it.

    Losses are those of a micro-batch; `engine(...)` returns what the module returns. Parameters are the module's own, in
    the type that the configuration trains in. At ZeRO stage 3, and between a step and the next forward with overlap_comm,
    values are away outside of the engine's calls: `with engine.gather():` or capstan.zero.GatheredParameters holds them.
    Errors are ConfigError, PluginError and RuntimeFault, with a sentence each; what the module raises is raised as it is.
    """

    def __init__(self, module, config, optimizer=None, model_parameters=None, lr_scheduler=None, maker=None):
        """`maker`: makes the engine of a capstan.Run, with the configuration and the processes of the run."""
        super().__init__()
        refuse_wrapped(module)
        if isinstance(module, Engine):
            raise ConfigError("model: is an engine already. Give initialize() the module itself: engine.module.")
        source = source_of(config) if maker is None else None
        earlier = zero.engine_of(module)
        if earlier is not None:
            earlier.destroy(gather=True)
        if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(list(module.parameters()))
        parameters = once(module.named_parameters(remove_duplicate=False))
        zero.refuse_meta(parameters)
        refuse_tied_data(parameters)
        self.module = module
        self._own = None
        groups, program = of_program(optimizer, model_parameters, parameters)
        self._core = _core.Engine(
            **shown_of(module), left_out=left_out("model_parameters" if optimizer is None else "optimizer", groups, parameters),
            deferral=zero.deferral_of([p for _, p in parameters]), maker=maker or self._maker_of(source, program))
        self._facts = self._core.facts()
        _devices.name_device(self.device.type)
        self._names_of = {id(parameter): name for name, parameter in parameters if parameter.is_floating_point()}
        # Whether they still are where they were is asked at each step.
        self._holders = [(part._parameters, key, parameter, self._names_of.get(id(parameter), key)) for part in module.modules()
                         for key, parameter in part._parameters.items() if parameter is not None]
        self._undo = []
        self._take_optimizer(optimizer, groups, dict(parameters))
        self._take_schedule(lr_scheduler)
        self.training_dataloader = None
        self._undo += _hooks.attach(self)
        zero.add_engine(self)
        _backward.intercept()
        _hooks.tell_of_failures()

    @staticmethod
    def _maker_of(source, program):
        """Makes an engine that stands by itself."""
        meeting, listening = _distributed.meeting()
        return _core.EngineMaker(config=source.config, source=source.source, in_memory=source.in_memory,
                                 program=[(path, json.dumps(value)) for path, value in program], place=meeting,
                                 listening_socket=listening)

    def _take_optimizer(self, optimizer, groups, parameters):
        self.optimizer = self._view = None
        if optimizer is not None and not is_translated(optimizer):
            self._own = OwnOptimizer(optimizer, parameters)
            self._core.set_own_optimizer(self._own.update)
            self.optimizer = optimizer
        elif self._facts["has_optimizer"]:
            self.optimizer = self._view = OptimizerView(self._core, parameters, optimizer)
            self._take_first_rates(groups)
        if optimizer is not None:
            optimizer._opt_called = True  # schedules of torch's warn where step() was not called before theirs

    def _take_first_rates(self, groups):
        """Rates of 0, which a configuration does not hold."""
        stopped = {id(parameter) for group in groups if numbers_of(group.get("lr")) == [0.0] for parameter in group["params"]}
        for place, group in enumerate(self._view.param_groups if stopped else ()):
            if not any(id(parameter) in stopped for parameter in group["params"]):
                continue
            if self._facts["has_scheduler"]:
                raise ConfigError(
                    f"scheduler: the configuration names '{self._facts['scheduler']}', and the learning rate of parameter group "
                    f"{place} is 0, as a schedule of the program's has set it. Leave one of the two schedules out.")
            group["lr"] = 0.0 if not isinstance(group["lr"], Tensor) else group["lr"]
        self._view.take()

    def _take_schedule(self, lr_scheduler):
        self._program_schedule = None
        self.lr_scheduler = None
        if lr_scheduler is not None:
            if self._facts["has_scheduler"]:
                raise ConfigError(
                    f"scheduler: the configuration names '{self._facts['scheduler']}', and the program brings a schedule of its "
                    "own. Leave one of them out."
                )
            made = hasattr(lr_scheduler, "step") and not isinstance(lr_scheduler, type)
            self._program_schedule = lr_scheduler if made else lr_scheduler(self.optimizer)
            check_schedule(self._program_schedule, self.optimizer)
            self.lr_scheduler = self._program_schedule
            self._take_numbers()
        elif self._facts["has_scheduler"]:
            self.lr_scheduler = ScheduleView(self)
        self._moves_schedules = self._program_schedule is not None or \
            (self._view is not None and self._facts["has_scheduler"])

    def _take_numbers(self):
        if self._view is not None:
            self._view.take()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.module, name)

    def __reduce__(self):
        raise RuntimeFault(
            "an engine cannot be copied or pickled: it holds connections and this rank's part of the model. Copy engine.module "
            "within 'with engine.gather():', or save a checkpoint."
        )

    def __deepcopy__(self, memo):
        return self.__reduce__()

    # ---- One step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for one micro-batch. With gradients on, it is one whose loss goes to backward(); without
        (torch.no_grad()) an evaluation. At ZeRO stage 3 every forward is one of all ranks."""
        return self._core.run(self._modules["module"], args, kwargs)

    def backward(self, loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True, **_ignored: Any) -> Tensor:
        """Backward of loss / gradient_accumulation_steps (of the loss itself without `scale_wrt_gas`), times the loss scale.
        `loss`: a scalar tensor made of what engine(...) returned. Gradients accumulate in the engine, in parts above stage
        0; parameters' `.grad` is not for the program. Returns the loss. `loss.backward()` calls this, and so does
        `output.backward(gradient)`, with the sum of output * gradient as the loss.

        Raises RuntimeFault for a loss that comes from elsewhere or goes through two engines, a second backward of one
        forward, a loss that is not scalar, and micro-batches beyond gradient_accumulation_steps."""
        self._core.backward(loss, scale_wrt_gas, retain_graph)
        return loss

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss as it is, for programs that call `engine.scale(loss).backward()`: backward scales it."""
        return loss

    def step(self, lr_kwargs: dict | None = None) -> None:
        """After the step's last micro-batch: norm, clipping, update, schedule. After earlier ones it counts. Raises
        RuntimeFault without a backward before, for parameters that were replaced, and where the loss or a gradient is not
        finite and no loss is scaled."""
        if self._view is not None:
            self._view.take()
        if isinstance(self._program_schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self._refuse_without_metrics(lr_kwargs)
        updated = functools.partial(self._move_schedules, lr_kwargs) if self._moves_schedules else None
        self._core.step(self._holders, updated)

    def _refuse_without_metrics(self, lr_kwargs):
        if "metrics" not in (lr_kwargs or {}) and self._core.at_boundary():
            raise RuntimeFault("step: ReduceLROnPlateau moves the rates by a metric, and none was given. Call "
                               "engine.step(lr_kwargs={\"metrics\": loss}).")

    def _move_schedules(self, lr_kwargs, applied):
        """After an update, or one that was left out."""
        if self._view is not None and self._facts["has_scheduler"]:
            self._view.show()
        if self._program_schedule is not None and applied:
            self._program_schedule.step(**(lr_kwargs or {}))
            self._take_numbers()

    def train_batch(self, data_iter: Iterator) -> Tensor:
        """One whole step: gradient_accumulation_steps micro-batches from an iterator. A micro-batch is a dict of the module's
        keyword arguments, or a tuple of its arguments, and its output holds the loss: a scalar, `.loss`, ["loss"] or the
        first of a tuple. Returns the mean loss over micro-batches and ranks, a scalar tensor."""
        for _ in range(self._facts["accumulation"]):
            self.backward(loss_of(call(self, next_of(data_iter, "train_batch"))))
            self.step()
        return torch.tensor(self._core.mean_loss())

    def eval_batch(self, data_iter: Iterator, micro_batches: int | None = None) -> Tensor:
        """The mean loss over all ranks of `micro_batches` micro-batches (default: gradient_accumulation_steps), without
        gradients and in evaluation mode, a scalar tensor. Metric Train/Samples/eval_loss."""
        count = self._facts["accumulation"] if micro_batches is None else micro_batches
        mean = self._core.eval_batch(lambda: loss_of(call(self.module, next_of(data_iter, "eval_batch"))), count)
        return torch.tensor(mean)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro-batch under way is the last of its step."""
        return self._core.at_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Says whether the next micro-batch is the last of its step, instead of counting; None: count again."""
        self._core.set_boundary(None if is_boundary is None else bool(is_boundary))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches within add their gradients up on this rank, and do not count as those of
        gradient_accumulation_steps. Raises RuntimeFault at ZeRO stages 2 and 3, which partition gradients as they come."""
        if self._facts["stage"] >= 2:
            raise RuntimeFault(f"no_sync: ZeRO stage {self._facts['stage']} partitions gradients during each backward. Use stage 0 "
                               "or 1, or gradient_accumulation_steps.")
        self._core.begin_no_sync()
        try:
            yield
        finally:
            self._core.end_no_sync()

    def _micro_batches(self):
        """Micro-batches of this rank so far, those of the step under way included."""
        return self._core.progress()[0] * self._facts["accumulation"] + self._core.micro_steps() % self._facts["accumulation"]

    # ---- Values

    @contextlib.contextmanager
    def gather(self, parameters: Any = None, written_by: int | None = None) -> Iterator["Engine"]:
        """Holds the values of parameters (tensors or names; all of them without) whole in memory. With `written_by`, a rank,
        all ranks and the fp32 masters take that rank's values at the end. Called by all ranks."""
        names = list(self._names_of.values()) if parameters is None else [
            one if isinstance(one, str) else self._name_of(one) for one in
            ([parameters] if isinstance(parameters, (str, torch.Tensor)) else parameters)]
        scope = self._core.gather(names, written_by)
        try:
            yield self
        finally:
            scope.close()

    def _name_of(self, parameter):
        name = self._names_of.get(id(parameter))
        if name is None:
            raise RuntimeFault("gather: this tensor is not a parameter of the engine's module.")
        return name

    def _can_be_written(self):
        return True

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The module's generate(), with its parameters there. At ZeRO stage 3 called by all ranks, which pass synced_gpus=True
        where they may differ in length."""
        return self._evaluate(self.module.generate, *args, **kwargs)

    def _evaluate(self, function, *args, **kwargs):
        with torch.no_grad():
            return self._core.evaluate(function, args, kwargs)

    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Writes the module's state_dict(), whole, in the type that it is trained in, with torch.save on rank 0. Called by all
        ranks. Returns True; False, with a warning, at ZeRO stage 3 without stage3_gather_16bit_weights_on_model_save."""
        if self._facts["stage"] == 3 and not self._facts["save_16bit"]:
            _log.warning("save_16bit_model: nothing is written, because "
                         "zero_optimization.stage3_gather_16bit_weights_on_model_save is false. Set it to true.")
            return False
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if self._core.rank() == 0:
            os.makedirs(save_dir, exist_ok=True)
            path = os.path.join(save_dir, save_filename)
            try:
                torch.save(state, path + ".part")
                os.replace(path + ".part", path)
            except (OSError, RuntimeError) as error:
                with contextlib.suppress(OSError):
                    os.remove(path + ".part")
                raise RuntimeFault(f"save_16bit_model: '{path}' cannot be written: {error}. Free space there, or save "
                                   "elsewhere.") from None
        return True

    save_fp16_model = save_16bit_model

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        """The module's state_dict() with whole values, on rank 0; None on the others. Called by all ranks."""
        with self.gather():
            if self._core.rank() > 0:
                return None
            frozen = {name for name, p in self.module.named_parameters(remove_duplicate=False) if not p.requires_grad}
            copies = {}
            state = {}
            for name, value in self.module.state_dict().items():
                if exclude_frozen_parameters and name in frozen:
                    continue
                if isinstance(value, torch.Tensor):
                    # Tied tensors stay one.
                    key = (value.untyped_storage()._cdata, value.storage_offset(), value.shape)
                    value = copies.setdefault(key, value.detach().cpu().clone())
                state[name] = value
            return state

    def module_state_dict(self, exclude_frozen_parameters=False):
        """The module's state_dict() with whole values, on every rank. Called by all ranks."""
        with self.gather():
            frozen = {name for name, p in self.module.named_parameters() if not p.requires_grad} if exclude_frozen_parameters \
                else ()
            return {name: value.detach().clone() for name, value in self.module.state_dict().items() if name not in frozen}

    # ---- Checkpoints

    def save_checkpoint(self, save_dir: str, tag: str | None = None, client_state: dict | None = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        """Writes <save_dir>/<tag>/ (tag default: global_step<N>), which any number of processes can load, and then `latest`.
        `client_state`: texts, numbers, lists and dicts of the program's own. With `exclude_frozen_parameters` the checkpoint
        leaves out parameters that are not trained (LoRA's base model); an engine that loads it keeps those that it has. Called
        by all ranks. Returns True. Raises RuntimeFault; what was saved before stays as it was."""
        if not save_latest:
            raise RuntimeFault("save_checkpoint: save_latest=False is not here: the newest checkpoint is the latest. Save into "
                               "another folder.")
        self._take_numbers()
        state = dict(client_state or {})
        ours = {"micro_steps": self._core.micro_steps()}
        if self._program_schedule is not None and hasattr(self._program_schedule, "state_dict"):
            ours["lr_scheduler"] = packed(self._program_schedule.state_dict(), schedule_text(self._program_schedule))
        if self._own is not None:
            ours["optimizer"] = packed(self._own.optimizer.state_dict(), f"optimizer {type(self._own.optimizer).__name__}")
        state[RESERVED] = ours
        try:
            text = json.dumps(state)
        except (TypeError, ValueError) as error:
            raise RuntimeFault(f"save_checkpoint: client_state must be texts, numbers, lists and dicts: {error}. Keep other "
                               "objects in a file of your own beside the checkpoint.") from None
        self._core.save_checkpoint(os.fspath(save_dir), "" if tag is None else str(tag), text, not exclude_frozen_parameters)
        return True

    def load_checkpoint(self, load_dir: str, tag: str | None = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None) -> tuple[str | None, dict]:
        """Loads a tag, or the one that `latest` names. Returns the checkpoint's folder and the client state; (None, {}), with
        a warning, where load_dir holds no checkpoint. Without `load_module_strict`, parameters and buffers that the checkpoint or
        the module lacks are named in a warning, and the module's stay as they are. Called by all ranks. Raises RuntimeFault naming
        what does not fit; the engine is then as before. With `load_module_only` the engine takes parameters and buffers, and begins
        its states and its steps as a new one. Without `load_optimizer_states` it takes the master weights and the counters, from a
        checkpoint of whatever optimizer, and begins the states as a new one; an optimizer of the program's own keeps its state.
        Without `load_lr_scheduler_states` the schedule stays where it stands, which is its start in a new engine."""
        if custom_load_fn is not None:
            raise RuntimeFault("load_checkpoint: custom_load_fn is not called: parameters are taken by their names. Leave it out, "
                               "and load_module_strict=False for a module that has other parameters.")
        load_dir = os.fspath(load_dir)
        if tag is None:
            latest = os.path.join(load_dir, "latest")
            if not os.path.isfile(latest):
                _log.warning("load_checkpoint: there is no checkpoint in %s: the file 'latest' is missing.", load_dir)
                return None, {}
            with open(latest, encoding="utf-8") as file:
                tag = file.read().strip()
        if load_module_only:
            state = json.loads(self._core.load_weights(f"{load_dir}:{tag}", bool(load_module_strict)))
            take_reserved(state, None)
            return os.path.join(load_dir, str(tag)), state
        wanted = [what for what, takes in (("optimizer", self._own is not None and load_optimizer_states),
                                           ("lr_scheduler", self._program_schedule is not None and load_lr_scheduler_states)) if takes]
        states = {}

        def fault_of(text):
            try:
                states.update(states_of(json.loads(text), wanted))
            except RuntimeFault as fault:
                return str(fault)
            return ""

        state = json.loads(self._core.load_checkpoint(load_dir, str(tag), bool(load_module_strict), bool(load_optimizer_states),
                                                      bool(load_lr_scheduler_states), fault_of))
        theirs = take_reserved(state, self._program_schedule)
        if theirs is not None and "lr_scheduler" in wanted:
            states["lr_scheduler"] = theirs
        for what in [one for one in wanted if one not in states]:
            _log.warning("load_checkpoint: %s has no state of the program's own %s, which goes on with the one that it has.",
                         os.path.join(load_dir, str(tag)), what)
        if self._view is not None:
            self._view.show()
        if "optimizer" in states:
            self._own.optimizer.load_state_dict(states["optimizer"])
        if "lr_scheduler" in states:
            self._program_schedule.load_state_dict(states["lr_scheduler"])
            self._show_schedule()
        return os.path.join(load_dir, str(tag)), state

    def _show_schedule(self):
        rates = getattr(self._program_schedule, "get_last_lr", lambda: None)()
        if rates is not None and self.optimizer is not None:
            for group, rate in zip(self.optimizer.param_groups, rates):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
        self._take_numbers()

    def load_weights(self, file_or_folder):
        """Takes parameter values from a safetensors file with the module's names. Called by all ranks."""
        self._core.load_weights(os.fspath(file_or_folder), True)

    def load_teacher(self, checkpoint_or_file):
        """compression_training.layer_reduction: takes layers of a deeper teacher. Called by all ranks."""
        self._core.load_teacher(os.fspath(checkpoint_or_file))

    def finish_saving(self):
        """Waits until no checkpoint is being written. Raises RuntimeFault when writing one failed."""
        self._core.finish_saving()

    # ---- What is known of the run

    @property
    def global_steps(self) -> int:
        """Steps done, skipped ones included."""
        return self._core.progress()[0]

    @property
    def micro_steps(self) -> int:
        """Micro-batches of this rank whose step() was called."""
        return self._core.micro_steps()

    @property
    def skipped_steps(self) -> int:
        """Steps whose update was left out, because gradients were not finite."""
        return self._core.progress()[2]

    @property
    def global_samples(self) -> int:
        """Samples seen by all ranks."""
        return self._core.progress()[3]

    @property
    def world_size(self):
        return self._core.world_size()

    @property
    def global_rank(self):
        return self._core.rank()

    @property
    def device(self):
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def get_lr(self) -> list[float]:
        """The rates that the next update uses, one a parameter group."""
        if self._own is not None:
            return [float(group["lr"]) for group in self._own.optimizer.param_groups]
        self._take_numbers()
        return [dict(numbers)["lr"][0] for numbers, _ in self._core.groups()]

    def get_mom(self):
        """Betas, or the momentum, of the next update, one a parameter group."""
        self._take_numbers()
        groups = [dict(numbers) for numbers, _ in self._core.groups()]
        return [tuple(group["betas"]) if "betas" in group else group.get("momentum", [0.0])[0] for group in groups]

    def get_global_grad_norm(self) -> float | None:
        """The L2 norm of the last step's gradients over all ranks, before clipping, a float. None before the first step, and
        at the first call where neither clipping nor an overflow test needs the norm: it is computed from then on. Always None
        where zero_optimization.compute_grad_norm is false."""
        self._core.want_grad_norm(True)
        norm = self._core.last_step()[3]
        return norm if self.global_steps > 0 and norm == norm else None

    def was_step_applied(self) -> bool:
        """Whether the last step updated."""
        return self._core.last_step()[0]

    def loss_scale(self):
        return self._core.last_step()[4]

    def train_batch_size(self):
        return self._facts["train_batch_size"]

    def train_micro_batch_size_per_gpu(self):
        return self._facts["micro_batch_size"]

    def gradient_accumulation_steps(self):
        return self._facts["accumulation"]

    def gradient_clipping(self):
        return self._facts["gradient_clipping"]

    def get_batch_info(self) -> tuple[int, int, int]:
        """Samples a step, samples a micro-batch of one rank, micro-batches a step."""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def zero_optimization_stage(self):
        return self._facts["stage"]

    def zero_optimization(self):
        return self._facts["stage"] > 0

    def zero_optimization_partition_weights(self):
        return self._facts["stage"] == 3

    def zero_optimization_partition_gradients(self):
        return self._facts["stage"] >= 2

    def zero_gather_16bit_weights_on_model_save(self):
        return self._facts["save_16bit"]

    def fp16_enabled(self):
        return self._facts["dtype"] == "float16"

    def bfloat16_enabled(self):
        return self._facts["dtype"] == "bfloat16"

    def set_custom_curriculum_learning_schedule(self, schedules):
        """The difficulty of each metric whose curriculum is "custom": a dict of functions of the step, 1 for the first."""
        for metric, function in schedules.items():
            self._core.set_difficulty_schedule(metric, function)

    def write_metric(self, tag, value):
        """A number for the monitors, at the current global sample."""
        self._core.write_metric(tag, float(value))

    def zero_grad(self, *_args, **_kwargs):
        """Drops the gradients of the step's micro-batches so far, which go on counting as micro-batches, and those in `.grad` of
        parameters that are not trained. After a step there are none: the engine drops gradients when it has used them. Called by
        all ranks."""
        self._core.zero_grad()
        for parameter in self.module.parameters():
            parameter.grad = None

    def deepspeed_io(self, dataset, batch_size=None, collate_fn=None, num_local_io_workers=None, **_ignored):
        """A DataLoader over a data set in the engine's order, in micro-batches of this rank."""
        return loader_of(self, dataset, collate_fn, num_workers=num_local_io_workers or 0)

    def dump_state(self):
        """The configuration and the run's facts, one "name .... value" a line."""
        return self._core.state_dump()

    @property
    def config(self):
        """The configuration with every value in force, a dict."""
        return json.loads(self._facts["effective"])

    # ---- The end

    def destroy(self, gather: bool = False) -> None:
        """Ends the engine: monitors are flushed, connections closed. Further calls raise RuntimeFault. At ZeRO stage 3 the
        module's values are away from then on, unless `gather`, which all ranks call, leaves them whole on each. Raises
        RuntimeFault within gather()."""
        self._core.refuse_open_gathers()
        zero.remove_engine(self)
        while self._undo:
            self._undo.pop()()
        if gather and self._facts["stage"] == 3:
            with self.gather():
                values = {name: p.detach().clone() for name, p in self.module.named_parameters() if id(p) in self._names_of}
        self._core.destroy()
        if gather and self._facts["stage"] == 3:
            for name, parameter in self.module.named_parameters():
                if name in values:
                    parameter.data = values[name]


def initialize(
    args: Any = None, model: torch.nn.Module | None = None, optimizer: Any = None, model_parameters: Any = None,
    training_data: Any = None, lr_scheduler: Any = None, distributed_port: int = 29500, mpu: Any = None,
    dist_init_required: bool | None = None, collate_fn: Callable | None = None, config: str | dict | None = None,
    mesh_param: Any = None, config_params: str | dict | None = None,
) -> tuple["Engine", Any, Any, Any]:
    """An engine for `model` as a configuration says, with the arguments of deepspeed.initialize().

    model: a torch.nn.Module, on the device that the configuration trains on.
    config (or config_params, or args.deepspeed_config): a DeepSpeed configuration, a file's path (JSON with comments, or
        TOML) or a dict.
    optimizer: a new optimizer of torch.optim, which becomes the plugin of its name with its groups and numbers, at any ZeRO
        stage; any other Optimizer runs as it is at stage 0. Without one the configuration's.
    model_parameters: parameters, or groups of them as torch.optim takes them, for the configuration's optimizer.
    lr_scheduler: a schedule of torch.optim.lr_scheduler, or a function that makes one of the optimizer; engine.step() moves
        it on after each update. Without one the configuration's.
    training_data, collate_fn: a data set for the loader, which gives micro-batches of this rank in the engine's order.

    Returns (engine, optimizer, loader, schedule); each of the last three is None where there is none. Several processes
    (torchrun, capstan launch, srun, mpirun) call it together. Raises ConfigError with every problem of the configuration,
    PluginError, RuntimeFault.
    """
    if model is None:
        raise ConfigError("model: is missing. Give the torch.nn.Module to train: capstan.initialize(model=net, config=...).")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise ConfigError(f"{name}: tensor, pipeline and sequence parallelism are not here; every process holds the same "
                              "model. Leave it out.")
    of_args = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    given = [one for one in (config, config_params, of_args) if one is not None]
    if len(given) > 1 and any(one is not given[0] for one in given):
        raise ConfigError("config: is given more than once, of config, config_params and args.deepspeed_config. Keep one.")
    engine = Engine(model, given[0] if given else None, optimizer, model_parameters, lr_scheduler)
    if training_data is not None:
        engine.training_dataloader = loader_of(engine, training_data, collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
