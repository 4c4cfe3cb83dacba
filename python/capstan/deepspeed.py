"""Stands in for the module `deepspeed`, so that programs which use DeepSpeed by name train with Capstan:

    import capstan.deepspeed        # first, before transformers and accelerate

    Trainer(model=model, args=TrainingArguments(..., deepspeed="ds_config.json"), train_dataset=data).train()

What transformers and accelerate use of `deepspeed` is here, and its package metadata, which they look at. Anything else
raises with the reason. `deepspeed.__version__` is the version of DeepSpeed whose names these are.
"""

import dis
import functools
import importlib.machinery
import importlib.metadata
import logging
import os
import sys
import types

import torch

from capstan import _distributed, _kept, engine, zero
from capstan._core import RuntimeFault

__version__ = "0.19.8"

DeepSpeedEngine = engine.Engine
init_distributed = _distributed.init_distributed


# Programs that know DeepSpeed use torch.distributed behind these two, which start it there.
@functools.wraps(engine.initialize)
def initialize(*args, **kwargs):
    init_distributed(dist_init_required=kwargs.get("dist_init_required"))
    return engine.initialize(*args, **kwargs)


class Init(zero.Init):
    __doc__ = zero.Init.__doc__

    def __init__(self, *args, enabled=True, **kwargs):
        if enabled:
            init_distributed()
        super().__init__(*args, enabled=enabled, **kwargs)


_REASONS = {
    "pipe": "pipeline parallelism is not here; ZeRO partitions the model over processes",
    "PipelineModule": "pipeline parallelism is not here; ZeRO partitions the model over processes",
    "tp_model_init": "tensor parallelism is not here; ZeRO stage 3 partitions parameters",
    "moe": "mixture-of-experts layers of DeepSpeed are not here; those of transformers are ordinary modules",
    "groups": "groups of tensor, sequence and expert parallelism are not here",
    "monitor": "monitors are plugins, which the configuration names",
    "DeepSpeedConfig": "is not here; engine.config is the configuration with every value in force, a dict",
    "flops_profiler": "is not here; the section flops_profiler profiles a step of the engine",
}
for _names, _reason in {
    "init_inference InferenceEngine":
        "DeepSpeed-Inference is not here; engine.generate() and torch run the trained model",
    "sequence sequence_parallel ulysses_sp UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter":
        "sequence parallelism is not here",
    "checkpointing activation_checkpointing":
        "is not here; the section activation_checkpointing, torch.utils.checkpoint and capstan.checkpoint() do that work",
    "WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest":
        "is not here; schedules are named in the configuration's section scheduler, or are of torch.optim.lr_scheduler",
    "DeepSpeedCheckpoint zero_to_fp32":
        "is not here; 'capstan export --checkpoint DIR --to safetensors --out FILE' writes whole weights of a checkpoint",
    "stage3 stage_1_and_2":
        "is not here; the engine is the optimizer of every ZeRO stage",
    "lion DeepSpeedCPULion FusedLion":
        "is not here; name the type Lion in the configuration's section optimizer",
    "safe_update_full_grad_vectorized":
        "is not here; deepspeed.utils.safe_set_full_grad sets the gradient of one parameter",
}.items():
    _REASONS.update(dict.fromkeys(_names.split(), _reason))


class _StandIn(types.ModuleType):
    """A module of deepspeed's, which says what it lacks."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        reason = _REASONS.get(name) or _REASONS.get(self.__name__.rpartition(".")[2])
        text = f"{self.__name__}.{name}: {reason or 'is not among what transformers and accelerate use of DeepSpeed'} " \
            "(capstan.deepspeed stands in for deepspeed)."
        # `from module import name` makes a text of its own of an AttributeError, in which the reason is lost.
        raise ImportError(text, name=self.__name__) if _imports_from(sys._getframe(1)) else AttributeError(text)


def _imports_from(frame):
    """Whether the instruction that a frame stands at is that of `from module import name`."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def _module(name, **members):
    made = _StandIn(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, _Finder, is_package=True)
    made.__path__ = []
    made.__file__ = __file__
    made.__dict__.update(members)
    sys.modules[name] = made
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, made)
    return made


class _Finder:
    """Answers for modules of deepspeed that are not here, and for its package metadata."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if not name.startswith("deepspeed."):
            return None
        reason = next((_REASONS[part] for part in name.split(".") if part in _REASONS), None)
        raise ModuleNotFoundError(
            f"{name}: {reason or 'is not among what transformers and accelerate use of DeepSpeed'} (capstan.deepspeed stands in "
            "for deepspeed).", name=name)

    @classmethod
    def find_distributions(cls, context=None):
        name = getattr(context, "name", None)
        return [_Distribution()] if name is None or name.lower() == "deepspeed" else []


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename):
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {__version__}\nSummary: Capstan, standing in for deepspeed\n"

    def locate_file(self, path):
        return path


# torch.distributed's names, which launchers and Trainer compare with.
_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl"}


class _Accelerator:
    """What deepspeed.accelerator.get_accelerator() is asked: facts of torch's current device."""

    _name = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"

    def device_name(self, index=None):
        return self._name if index is None or self._name == "cpu" else f"{self._name}:{index}"

    def current_device_name(self):
        return self.device_name(None if self._name == "cpu" else torch.accelerator.current_device_index())

    def current_device(self):
        return self.current_device_name()

    def device_count(self):
        return 1 if self._name == "cpu" else torch.accelerator.device_count()

    def communication_backend_name(self):
        return _BACKENDS.get(self._name, "gloo")

    def is_available(self):
        return True

    def is_bf16_supported(self):
        return True

    def is_fp16_supported(self):
        return True

    def empty_cache(self):
        if self._name != "cpu":
            torch.accelerator.empty_cache()

    def synchronize(self, device_index=None):
        if self._name != "cpu":
            torch.accelerator.synchronize(device_index)


_accelerator = _Accelerator()


def get_accelerator():
    return _accelerator


def clone_tensors_for_torch_save(item, device=torch.device("cpu"), _copies=None):
    """Copies of all tensors in nested lists and dicts, whole, without what they are views of. Tensors on the same values, as
    tied weights are, stay one."""
    copies = {} if _copies is None else _copies
    if isinstance(item, torch.Tensor):
        if item.numel() == 0:
            return item.detach().clone().to(device)
        place = (item.untyped_storage()._cdata, item.dtype, item.storage_offset(), item.shape, item.stride())
        if place not in copies:
            copies[place] = item.detach().clone().to(device)
        return copies[place]
    if isinstance(item, (list, tuple)):
        return type(item)(clone_tensors_for_torch_save(one, device, copies) for one in item)
    if isinstance(item, dict):
        return type(item)({key: clone_tensors_for_torch_save(one, device, copies) for key, one in item.items()})
    return item


def add_config_arguments(parser):
    """The options --deepspeed and --deepspeed_config of a program's argparse parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="accepted; the configuration decides")
    group.add_argument("--deepspeed_config", default=None, type=str, help="the configuration file")
    return parser


def see_memory_usage(message, force=False):
    """Logs the memory of this process, and of its GPU, in GB, where `force` is true."""
    if not force:
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    gpu = f", {torch.cuda.memory_allocated() / 1e9:.2f} GB of the GPU" if torch.cuda.is_initialized() else ""
    logging.getLogger("DeepSpeed").warning(f"{message}: {resident / 1e9:.2f} GB of memory{gpu}")


def set_z3_leaf_modules(model, leaf_module_classes):
    """Returns the modules of these classes (or of these class names). At ZeRO stage 3 operators, not modules, bring parameters,
    so that ranks which use other parts of a module, as mixtures of experts do, have to keep those parts: a warning names
    the key and its value."""
    names = {one if isinstance(one, str) else one.__name__ for one in leaf_module_classes}
    found = [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]
    if not found:
        raise ValueError(f"set_z3_leaf_modules: the model has no module of {', '.join(sorted(names))}.")
    largest = max((p.numel() for module in found for p in module.parameters()), default=0)
    logging.getLogger("capstan").warning(
        "set_z3_leaf_modules: ZeRO stage 3 gathers parameters for operators, not for modules, so this call changes nothing. "
        "Where ranks use other parts of %s in one step (experts without tokens), set "
        "zero_optimization.stage3_param_persistence_threshold above %d, the size of the largest parameter there, or use stage 2.",
        ", ".join(sorted(names)), largest)
    return found


def _torch_optimizer(plain, decoupled):
    """A class of deepspeed.ops, which map_pytorch_optim_to_deepspeed() of accelerate asks for: the plugin with its name."""

    class Optimizer(plain):
        def __init__(self, model_params, lr=1e-3, adamw_mode=True, fp32_optimizer_states=True, **numbers):
            kind = torch.optim.AdamW if decoupled and adamw_mode else plain
            kind.__init__(self, model_params, lr=lr, **numbers)
            self.__class__ = kind

    return Optimizer



def _orig_torch_arange(*args, **kwargs):
    return torch.arange(*args, **kwargs)


def _zero_wrapper_for_fp_tensor_constructor(fn, *_args, **_kwargs):
    return fn


def _communication():
    import torch.distributed as dist

    names = ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list", "get_rank",
             "get_world_size", "is_available", "is_initialized", "new_group", "ReduceOp", "destroy_process_group")
    members = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    members["get_local_rank"] = lambda: int(__import__("os").environ.get("LOCAL_RANK", 0))
    members["get_rank"] = lambda group=None: dist.get_rank(group) if dist.is_initialized() else 0
    members["get_world_size"] = lambda group=None: dist.get_world_size(group) if dist.is_initialized() else 1
    return {**members, "init_distributed": init_distributed}


def _stand_in():
    present = sys.modules.get("deepspeed")
    if present is not None and not isinstance(present, _StandIn):
        raise ImportError(
            f"capstan.deepspeed: the module deepspeed of {getattr(present, '__file__', 'another package')} is imported already. "
            "Import capstan.deepspeed before anything that imports deepspeed, accelerate and transformers above all."
        )
    accelerate = sys.modules.get("accelerate.utils")
    if accelerate is not None and not hasattr(accelerate, "DeepSpeedEngineWrapper"):
        raise ImportError(
            "capstan.deepspeed: accelerate is imported already, and has found no deepspeed. Import capstan.deepspeed before "
            "accelerate and transformers."
        )
    sys.meta_path.insert(0, _Finder)
    logger = logging.getLogger("DeepSpeed")
    top = _module("deepspeed", __version__=__version__, __doc__=__doc__, DeepSpeedEngine=DeepSpeedEngine, initialize=initialize,
                  init_distributed=init_distributed, add_config_arguments=add_config_arguments, get_accelerator=get_accelerator)
    top.version = __version__
    _module("deepspeed.zero", Init=Init, GatheredParameters=zero.GatheredParameters,
            register_external_parameter=zero.register_external_parameter,
            unregister_external_parameter=zero.unregister_external_parameter)
    _module("deepspeed.comm", **_communication())
    _module("deepspeed.accelerator", get_accelerator=get_accelerator)
    kept = {name: getattr(_kept, name) for name in _kept.__all__}
    _module("deepspeed.utils", logger=logger, log_dist=lambda message, ranks=None, level=logging.INFO: logger.log(level, message),
            set_z3_leaf_modules=set_z3_leaf_modules, see_memory_usage=see_memory_usage, **kept)
    _module("deepspeed.utils.tensor_fragment", **kept)
    _module("deepspeed.utils.logging", logger=logger)
    _module("deepspeed.checkpoint")
    _module("deepspeed.checkpoint.utils", clone_tensors_for_torch_save=clone_tensors_for_torch_save)
    _module("deepspeed.ops")
    _module("deepspeed.ops.adam", DeepSpeedCPUAdam=_torch_optimizer(torch.optim.Adam, True),
            FusedAdam=_torch_optimizer(torch.optim.Adam, True))
    _module("deepspeed.ops.adagrad", DeepSpeedCPUAdagrad=_torch_optimizer(torch.optim.Adagrad, False))
    _module("deepspeed.runtime")
    _module("deepspeed.runtime.engine", DeepSpeedEngine=DeepSpeedEngine)
    _module("deepspeed.runtime.lr_schedules",
            VALID_LR_SCHEDULES=["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
    _module("deepspeed.runtime.utils", clip_grad_norm_=torch.nn.utils.clip_grad_norm_, see_memory_usage=see_memory_usage)
    _module("deepspeed.runtime.zero", GatheredParameters=zero.GatheredParameters, Init=Init)
    _module("deepspeed.runtime.zero.partition_parameters", GatheredParameters=zero.GatheredParameters, Init=Init,
            ZeroParamStatus=zero.ZeroParamStatus, zero_wrapper_for_fp_tensor_constructor=_zero_wrapper_for_fp_tensor_constructor,
            _orig_torch_arange=_orig_torch_arange, get_accelerator=get_accelerator)
    return top


_stand_in()

__all__ = ["DeepSpeedEngine", "RuntimeFault", "add_config_arguments", "get_accelerator", "init_distributed", "initialize",
           "zero"]
