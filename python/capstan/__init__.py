"""Training by DeepSpeed configuration files, with components as plugins.

    import capstan

    engine, optimizer, loader, scheduler = capstan.initialize(model=net, config="ds_config.json", training_data=data)
    for batch in loader:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()

The names are those of DeepSpeed. `import capstan.deepspeed` makes the engine stand in for the module `deepspeed`, for
programs that import that: transformers' Trainer, accelerate.
"""

from capstan import _torch_check

_torch_check.require_fitting_torch()

from capstan import zero  # noqa: E402
from capstan import _distributed  # noqa: E402
from capstan._core import ConfigError, PluginError, RuntimeFault  # noqa: E402
from capstan._distributed import init_distributed  # noqa: E402
from capstan._hooks import checkpoint, layer  # noqa: E402
from capstan._verify import Verification, verify  # noqa: E402
from capstan.engine import Engine, initialize  # noqa: E402
from capstan._run import Run  # noqa: E402

__version__ = _torch_check.VERSION
_distributed.log_on_rank_0("capstan")

__all__ = ["ConfigError", "Engine", "PluginError", "Run", "RuntimeFault", "Verification", "checkpoint", "init_distributed",
           "initialize", "layer", "verify", "zero"]
