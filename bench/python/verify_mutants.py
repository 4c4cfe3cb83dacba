"""Twelve faults that training has had somewhere, put into Capstan's engine for Python where build_model is called: does
capstan.verify() find each of them, and name it rightly?"""

import functools
import os
import sys

import torch

import capstan
from capstan import _loader
from capstan._kept import (safe_get_full_fp32_param, safe_get_local_fp32_param, safe_get_local_grad,
                           safe_get_full_optimizer_state, safe_set_full_fp32_param, safe_set_full_optimizer_state,
                           safe_set_local_fp32_param, safe_set_local_grad)
from capstan.engine import Engine

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/python"))
import verify_models as models  # noqa: E402


def around(name, change):
    """change(engine, call, arguments...) in place of a method of the engine's."""
    original = getattr(Engine, name)

    @functools.wraps(original)
    def changed(self, *args, **kwargs):
        return change(self, functools.partial(original, self), *args, **kwargs)

    setattr(Engine, name, changed)


def parameters(engine):
    return [parameter for parameter in engine.module.parameters() if parameter.requires_grad]


def before_updates(change):
    around("step", lambda engine, call: (change(engine) if engine.is_gradient_accumulation_boundary() else None, call())[1])


def after_loading(change):
    around("load_checkpoint", lambda engine, call, *args: (call(*args), change(engine))[0])


def a_gradient_summed_over_micro_batches():
    around("backward", lambda engine, call, loss: call(loss, scale_wrt_gas=False))
    return models.plain()


def a_ranks_gradient_dropped():
    around("backward", lambda engine, call, loss: call(loss * (engine.global_rank == 0)))
    return models.plain()


def rows_of_another_rank():
    original = _loader._Order.__iter__

    def rows(self):
        self._rank = 0
        return original(self)

    _loader._Order.__iter__ = rows
    return models.plain()


def a_state_not_saved():
    def forget(engine):
        for parameter in parameters(engine):
            safe_set_full_optimizer_state(parameter, 0 * safe_get_full_optimizer_state(parameter, "exp_avg"), "exp_avg")

    after_loading(forget)
    return models.plain()


def a_generator_not_restored():
    after_loading(lambda engine: torch.manual_seed(1))
    return models.dropout()


def a_bucket_reduced_before_the_last_gradient_came():
    net = models.plain()

    def hook(gradient):
        engine = next(iter(capstan.zero._engines))
        late = engine.gradient_accumulation_steps() > 1 and engine.is_gradient_accumulation_boundary()
        return gradient * 0 if late else gradient

    net.first.weight.register_hook(hook)
    return net


def clipping_by_a_local_norm():
    def clip(engine):
        norm = sum(float(safe_get_local_grad(parameter).norm()) ** 2 for parameter in parameters(engine)) ** 0.5
        for parameter in parameters(engine):
            safe_set_local_grad(parameter, safe_get_local_grad(parameter) * min(1.0, 0.01 / norm))

    before_updates(clip)
    return models.plain()


def weight_decay_on_a_part_only():
    def decay(engine):
        for parameter in parameters(engine):
            safe_set_local_fp32_param(parameter, safe_get_local_fp32_param(parameter) * (1 - 0.01 * engine.global_rank))

    before_updates(decay)
    return models.plain()


def a_loss_scale_not_undone():
    around("backward", lambda engine, call, loss: call(loss * 65536))
    return models.plain()


def an_optimizer_that_reads_its_neighbours_shard():
    def read(engine):
        if engine.zero_optimization_stage() == 0 or engine.world_size == 1:
            return
        for parameter in parameters(engine):
            safe_set_local_grad(parameter, safe_get_local_grad(parameter).flip(0))

    before_updates(read)
    return models.plain()


def a_resume_off_by_one_sample():
    original = Engine._micro_batches

    def off(engine):
        Engine._micro_batches = lambda self: original(self) + 1

    after_loading(off)
    return models.plain()


def fp16_masters():
    def after(engine, call):
        call()
        for parameter in parameters(engine):
            safe_set_full_fp32_param(parameter, safe_get_full_fp32_param(parameter).half().float())

    around("step", after)
    return models.plain()


# The variant that shows a fault, what must be said of it, and the loop that it is compared with.
MUTANTS = [
    (a_gradient_summed_over_micro_batches, "micro-batches of 4", "It is a sum over micro-batches where a mean is due", ()),
    (a_ranks_gradient_dropped, "stage 0, 2 processes", "the gradient of 'last.bias' at step 0", ()),
    (rows_of_another_rank, "stage 0, 2 processes", "the ranks saw other samples at step 0", ()),
    (a_state_not_saved, "saved and resumed", "is not in the checkpoint: a state", ()),
    (a_generator_not_restored, "saved and resumed", "a generator of random numbers", ()),
    (a_bucket_reduced_before_the_last_gradient_came, "micro-batches of 4", "the gradient of 'first.weight' at step 0", ()),
    (clipping_by_a_local_norm, "stage 1, 2 processes", "The update depends on which part of a parameter a rank has", ()),
    (weight_decay_on_a_part_only, "stage 1, 2 processes", "The update depends on which part of a parameter a rank has", ()),
    (a_loss_scale_not_undone, "PyTorch's own loop", "That looks like a loss scale that was not taken out there", ("plain",)),
    (an_optimizer_that_reads_its_neighbours_shard, "stage 1, 2 processes", "The update depends on which part", ()),
    (a_resume_off_by_one_sample, "saved and resumed", "the ranks saw other samples at step 2", ()),
    (fp16_masters, "PyTorch's own loop", "the loss at step 1 is", ("plain",)),
]

CONFIG = {"train_batch_size": 8, "gradient_clipping": 0.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def main():
    missed = []
    for mutant, variant, text, peer in MUTANTS:
        found = capstan.verify(mutant, CONFIG, models.samples, only=variant, peer=peer, verbose=False)
        row = next(one for one in found.variants if one["name"] == variant)
        is_named = row["verdict"] == "broken" and text in row["remark"]
        print("%-50s %s" % (mutant.__name__, "found" if is_named else "MISSED: %s: %s" % (row["verdict"], row["remark"])),
              flush=True)
        if not is_named:
            missed.append(mutant.__name__)
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
