"""Devices that torch knows by the name which a plugin gives them."""

import sys
import types

import torch


def name_device(type_name):
    """Gives torch a module for a device that it knows by its name alone: torch.npu for "npu". torch's own functions look for
    the module when a tensor goes to such a device. A module that is there already stays."""
    if hasattr(torch, type_name):
        return
    module = types.ModuleType(f"torch.{type_name}")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = torch.accelerator.device_count
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.synchronize = torch.accelerator.synchronize
    torch._register_device_module(type_name, module)
    sys.modules[module.__name__] = module
