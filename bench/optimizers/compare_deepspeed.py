"""Compares the Adam plugin with DeepSpeed's CPUAdam in one process, on the same tensors. See compare_deepspeed."""
import ctypes
import json
import statistics
import sys
import time

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

BUILD = sys.argv[1]
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000_000
REPEATS = int(sys.argv[3]) if len(sys.argv) > 3 else 9
PARAMS = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "adam_w_mode": True,
          "torch_adam": False, "bias_correction": True, "amsgrad": False}

P = ctypes.c_void_p


class Str(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]

    def text(self):
        return ctypes.string_at(self.data, self.size).decode()


def function(*arguments, result=ctypes.c_int):
    return ctypes.CFUNCTYPE(result, *arguments)


SET_ERROR = function(P, Str, result=None)
JSON_NUMBER = function(Str, Str, ctypes.POINTER(ctypes.c_double), P)
GROUP_NUMBERS = function(P, Str, ctypes.POINTER(ctypes.c_double), ctypes.c_size_t, P)


class Host(ctypes.Structure):  # capstan_host, as far as Adam looks
    _fields_ = ([("struct_size", ctypes.c_uint32), ("abi_major", ctypes.c_uint32), ("abi_minor", ctypes.c_uint32),
                 ("ctx", P), ("set_error", SET_ERROR)]
                + [(name, P) for name in ("log", "all_reduce_sum", "all_to_all", "param_norm", "stream", "sink_write")]
                + [("rank", ctypes.c_uint32), ("world_size", ctypes.c_uint32), ("all_gather", P), ("broadcast", P),
                   ("json_number", JSON_NUMBER), ("json_text", P), ("json_size", P), ("group_numbers", GROUP_NUMBERS)])


class Slot(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("group", ctypes.c_uint32), ("name", Str), ("param", P), ("grad", P),
                ("state", P), ("offset", ctypes.c_uint64), ("numel", ctypes.c_uint64), ("full_numel", ctypes.c_uint64),
                ("full_shape", P), ("full_dims", ctypes.c_uint32), ("compute", P),
                ("compute_written", ctypes.POINTER(ctypes.c_int))]


class Step(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("update_index", ctypes.c_int64), ("grad_scale", ctypes.c_double),
                ("groups", P), ("group_count", ctypes.c_size_t), ("model_state", P)]


UPDATE = function(P, P, ctypes.c_size_t, ctypes.POINTER(Step), P, P)
CREATE = function(ctypes.POINTER(Host), Str, ctypes.POINTER(P), P)


class Optimizer(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("update", UPDATE)]


class Component(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("kind", Str), ("type", Str), ("create", CREATE), ("destroy", P),
                ("vtable", ctypes.POINTER(Optimizer))]


class Plugin(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_major", ctypes.c_uint32), ("abi_minor", ctypes.c_uint32),
                ("manifest", ctypes.c_char_p), ("components", ctypes.POINTER(ctypes.POINTER(Component))),
                ("component_count", ctypes.c_size_t)]


def encoded(text):
    return Str(text.encode(), len(text.encode()))


def value_at(pointer):
    value = PARAMS
    for key in pointer.strip("/").split("/"):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@SET_ERROR
def set_error(_, text):
    print("plugin:", text.text(), file=sys.stderr)


@JSON_NUMBER
def json_number(_, pointer, out, __):
    out[0] = float(value_at(pointer.text()))
    return 0


@GROUP_NUMBERS
def group_numbers(_, name, out, count, __):
    value = PARAMS[name.text()]
    for i, number in enumerate(value if isinstance(value, list) else [value]):
        out[i] = float(number)
    return 0


class PluginAdam:
    """One slot, through the plugin's C functions; tensors cross as handles on the same memory."""

    def __init__(self, param, grad, exp_avg, exp_avg_sq, compute=None):
        self.torch_library = ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so")
        library = ctypes.CDLL(f"{BUILD}/lib/capstan/plugins/optimizers/libcapstan_optimizer_adam.so")
        library.capstan_plugin_v1.restype = ctypes.POINTER(Plugin)
        plugin = library.capstan_plugin_v1().contents
        components = [plugin.components[i].contents for i in range(plugin.component_count)]
        component = next(one for one in components if one.type.text() == "AdamW")
        self.host = Host(struct_size=ctypes.sizeof(Host), abi_major=1, set_error=set_error, world_size=1,
                         json_number=json_number, group_numbers=group_numbers)
        self.vtable = component.vtable.contents
        self.self = P()
        text = encoded(json.dumps(PARAMS))
        assert component.create(ctypes.byref(self.host), text, ctypes.byref(self.self), None) == 0
        self.step_count = torch.zeros(1, dtype=torch.int64)
        self.keep = [param, grad, exp_avg, exp_avg_sq, self.step_count, compute]
        states = (P * 4)(self.handle(exp_avg), self.handle(exp_avg_sq), None, self.handle(self.step_count))
        self.written = ctypes.c_int()
        self.slot = Slot(struct_size=ctypes.sizeof(Slot), name=encoded("p"), param=self.handle(param),
                         grad=self.handle(grad), state=ctypes.cast(states, P), numel=param.numel(),
                         full_numel=param.numel(), compute=None if compute is None else self.handle(compute),
                         compute_written=ctypes.pointer(self.written))
        self.states = states
        self.slots = (P * 1)(ctypes.addressof(self.slot))
        self.groups = (P * 1)(1)

    def handle(self, tensor):
        code = getattr(self.torch_library, "aoti_torch_dtype_" + str(tensor.dtype).removeprefix("torch."))()
        sizes, strides = (ctypes.c_int64 * 1)(tensor.numel()), (ctypes.c_int64 * 1)(1)
        handle = P()
        status = self.torch_library.aoti_torch_create_tensor_from_blob(
            P(tensor.data_ptr()), ctypes.c_int64(1), sizes, strides, ctypes.c_int64(0), ctypes.c_int32(code),
            ctypes.c_int32(self.torch_library.aoti_torch_device_type_cpu()), ctypes.c_int32(0), ctypes.byref(handle))
        assert status == 0
        return handle

    def update(self, grad_scale=1.0):
        step = Step(ctypes.sizeof(Step), 0, grad_scale, ctypes.cast(self.groups, P), 1, None)
        assert self.vtable.update(self.self, ctypes.cast(self.slots, P), 1, ctypes.byref(step), None, None) == 0


def take_turns(contenders):
    times = {name: ([], []) for name, _ in contenders}
    for _, run in contenders:
        run()
    for _ in range(REPEATS):
        for name, run in contenders:
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times[name][0].append(time.perf_counter() - wall)
            times[name][1].append(time.process_time() - cpu)
    first = [statistics.median(series) for series in times[contenders[0][0]]]
    for name, _ in contenders:
        wall, cpu = (statistics.median(series) for series in times[name])
        print(f"  {name:60} wall {wall * 1e3:9.3f} ms, cpu {cpu * 1e3:9.3f} ms; "
              f"to ours: wall {wall / first[0]:.3f}, cpu {cpu / first[1]:.3f}")


def main():
    with torch.no_grad():
        param = torch.nn.Parameter(torch.randn(COUNT))
        param.grad = torch.randn(COUNT) * 1e-3
        peer = DeepSpeedCPUAdam([param], lr=1e-4, weight_decay=0.01)
        peer.step()
        state = peer.state[param]
        narrow_grad, weights = param.grad.bfloat16(), param.bfloat16()
        plain = PluginAdam(param, param.grad, state["exp_avg"], state["exp_avg_sq"])
        narrow = PluginAdam(param, narrow_grad, state["exp_avg"], state["exp_avg_sq"], weights)

        def peer_with_copy():
            peer.step()
            weights.copy_(param)

        for threads in sorted({1, torch.get_num_threads()}):
            torch.set_num_threads(threads)
            print(f"{threads} thread(s), {COUNT} elements, median of {REPEATS}")
            take_turns([("AdamW, float32", plain.update), ("DeepSpeed's CPUAdam", peer.step)])
            take_turns([("AdamW, bfloat16: unscale, clip, update, copy", lambda: narrow.update(0.5)),
                        ("CPUAdam on ready float32 gradients, then the copy", peer_with_copy)])


main()
