"""torch.utils.checkpoint runs layers again in backward: gradients are those of the run without it, bit for bit, whatever
components change operators and layers in forward."""

import unittest

import torch
from torch.utils.checkpoint import checkpoint

import capstan
from models import VOCABULARY
from support import config

ROWS, TOKENS, STEPS = 4, 16, 3


class Block(torch.nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.norm, self.heads = torch.nn.LayerNorm(width), heads
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, hidden):
        rows, length, width = hidden.shape
        q, k, v = self.qkv(self.norm(hidden)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.proj(mixed.transpose(1, 2).reshape(rows, length, width))
        with torch.no_grad():  # an operator that the graph does not have, in a function that runs again
            level = self.fc(hidden.detach() * 0.5).mean()
        return hidden + self.out(torch.nn.functional.gelu(self.fc(hidden))) * level


def reentrant(function, *args):
    return checkpoint(function, *args, use_reentrant=True)


def not_reentrant(function, *args):
    return checkpoint(function, *args, use_reentrant=False)


def nested(function, *args):
    return reentrant(lambda *inner: reentrant(function, *inner), *args)


def mixed(function, *args):
    return not_reentrant(lambda *inner: reentrant(function, *inner), *args)


KINDS = (reentrant, not_reentrant, nested, mixed)


class Net(torch.nn.Module):
    """Two blocks; `times`: how often the second is used."""

    def __init__(self, run, times=1):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(16, VOCABULARY)
        self.run, self.times = run, times

    def forward(self, tokens):
        hidden = self.run(self.blocks[0], self.embed(tokens))
        for _ in range(self.times):
            hidden = self.run(self.blocks[1], hidden)
        return torch.nn.functional.cross_entropy(self.head(hidden)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def plainly(function, *args):
    return function(*args)


def quantised(calibration):
    return {"compression_training": {"activation_quantization": {
        "shared_parameters": {"enabled": True, "range_calibration": calibration, "schedule_offset": 0},
        "different_groups": {"all": {"params": {"bits": 4}, "modules": ["blocks"]}}}}}


SPARSE = {"sparse_attention": {"mode": "fixed", "block": 4, "num_local_blocks": 2, "num_global_blocks": 1,
                               "attention": "unidirectional"}}
LAYER_DROP = {"progressive_layer_drop": {"enabled": True, "theta": 0.1, "gamma": 5.0}}
RANDOM_LTD = {"data_efficiency": {"enabled": True, "seed": 7, "data_routing": {"enabled": True, "random_ltd": {
    "enabled": True, "total_layer_num": 2, "random_ltd_layer_num": 1, "random_ltd_layer_id": [1], "model_mask_name": None,
    "model_type": "decoder", "hidden_state_order": "batch_seq_dim", "random_ltd_schedule": {
        "min_value": 8, "max_value": 16, "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 80, "seq_per_step": 4}}}}}}


def engine_of(net, **keys):
    return capstan.initialize(model=net, config={**config(optimizer={"type": "SGD", "params": {"lr": 1.0}}), **keys})[0]


def trained(net, forward=lambda engine, ids: engine(ids), evaluate=False, **keys):
    """The parameters after some steps."""
    torch.manual_seed(0)
    net = net()
    engine = engine_of(net, **keys)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)
        loss = forward(engine, ids)
        if evaluate:
            with torch.no_grad():
                engine(ids.flip(0))
        engine.backward(loss)
        engine.step()
    values = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    engine.destroy()
    return values


class BackwardRunsTheFunctionOfForwardAgain(unittest.TestCase):
    def equal(self, one, other):
        for name in one:
            self.assertTrue(torch.equal(one[name], other[name]), f"{name}: {(one[name] - other[name]).abs().max()} apart")

    def check(self, changes, kinds=KINDS[:2], times=1, **how):
        plain = trained(lambda: Net(plainly, times), **how)
        if changes:
            without = trained(lambda: Net(plainly, times), **{key: how[key] for key in how if key not in changes})
            self.assertFalse(all(torch.equal(plain[name], without[name]) for name in plain), "the section changes nothing")
        for kind in kinds:
            with self.subTest(kind.__name__):
                self.equal(plain, trained(lambda: Net(kind, times), **how))

    def test_with_inputs_rounded_to_a_range_of_each_token(self):
        self.check(quantised("dynamic"), **quantised("dynamic"))

    def test_with_inputs_rounded_to_running_ranges(self):
        self.check(quantised("static"), KINDS, **quantised("static"))

    def test_with_running_ranges_of_a_block_that_is_used_three_times(self):
        self.check({}, times=3, **quantised("static"))

    def test_with_running_ranges_and_two_forwards_before_a_backward(self):
        self.check({}, forward=lambda engine, ids: engine(ids) + 2 * engine(ids.flip(1)), **quantised("static"))

    def test_with_an_evaluation_before_backward(self):
        self.check({}, KINDS[:1], evaluate=True, **quantised("static"))

    def test_with_sparse_attention(self):
        self.check(SPARSE, **SPARSE)

    def test_with_layers_left_out(self):
        self.check(LAYER_DROP, **LAYER_DROP)

    def test_with_tokens_left_out(self):
        self.check(RANDOM_LTD, **RANDOM_LTD)

    def test_with_all_of_them_and_dropped_activations(self):
        dropping = lambda run: lambda block, hidden: run(lambda x: torch.nn.functional.dropout(block(x), 0.2), hidden)
        how = {**quantised("static"), **SPARSE, **LAYER_DROP, **RANDOM_LTD}
        plain = trained(lambda: Net(dropping(plainly)), **how)
        for kind in KINDS[:2]:
            with self.subTest(kind.__name__):
                self.equal(plain, trained(lambda: Net(dropping(kind)), **how))

    def test_in_a_hugging_face_model(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        def llama(**how):
            net = LlamaForCausalLM(LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, max_position_embeddings=16, attn_implementation="sdpa"))
            if how:
                net.gradient_checkpointing_enable(how)
            return net.train()

        loss = lambda engine, ids: engine(input_ids=ids, labels=ids).loss
        quantised_layers = quantised("static")
        quantised_layers["compression_training"]["activation_quantization"]["different_groups"]["all"]["modules"] = ["mlp"]
        how = {**quantised_layers, **LAYER_DROP}
        plain = trained(llama, loss, **how)
        for use_reentrant in (False, True):
            with self.subTest(use_reentrant=use_reentrant):
                self.equal(plain, trained(lambda: llama(use_reentrant=use_reentrant), loss, **how))


class GradientsTakenInForward(unittest.TestCase):
    def test_leave_backward_of_a_forward_alone_and_run_its_functions_again(self):
        class Penalty(torch.nn.Module):
            def __init__(self, run):
                super().__init__()
                self.fc, self.out, self.run = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1), run

            def forward(self, x):
                x = x.clone().requires_grad_()
                energy = self.out(torch.tanh(self.run(self.fc, x))).sum()
                force = torch.autograd.grad(energy, x, create_graph=True)[0]
                return energy.square() + force.square().sum()

        keys = quantised("dynamic")
        keys["compression_training"]["activation_quantization"]["different_groups"]["all"]["modules"] = ["fc"]

        def weights(run):
            torch.manual_seed(3)
            net = Penalty(run)
            engine = engine_of(net, **keys)
            engine.backward(engine(torch.arange(32).view(4, 8) / 32.0))
            engine.step()
            values = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
            engine.destroy()
            return values

        plain, again = weights(plainly), weights(not_reentrant)
        for name in plain:
            self.assertTrue(torch.equal(plain[name], again[name]), name)


class UsesThatCannotBeToldApart(unittest.TestCase):
    def test_are_refused(self):
        class Twice(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 4)

            def forward(self, x):
                again = not_reentrant(lambda y: torch.tanh(self.fc(y)), x)
                other = not_reentrant(lambda y: torch.tanh(self.fc(y)), 3 * x)
                last = not_reentrant(lambda y: torch.tanh(self.fc(y)), x)
                return (again + other + last).square().mean()

        keys = quantised("static")
        keys["compression_training"]["activation_quantization"]["different_groups"]["all"]["modules"] = ["fc"]
        engine = engine_of(Twice(), **keys)
        loss = engine(torch.arange(16).view(4, 4) / 16.0)
        with self.assertRaisesRegex(
                RuntimeError,
                "backward runs module 'fc' again, which forward has used 3 times, and its input is that of several of these "
                "uses: which range it was quantised with is not known. Leave the module out of activation checkpointing, or "
                'set range_calibration to "dynamic" in compression_training.activation_quantization.'):
            engine.backward(loss)
        engine.destroy()


if __name__ == "__main__":
    unittest.main()
