"""loss.backward() in place of engine.backward(loss)."""

import torch

import capstan
from small_engine import Net, engine_of
from support import Fixture, in_processes, values_hash

x = torch.linspace(-1, 1, 16).reshape(4, 4)


def trained(backward, **keys):
    """After two steps of two micro-batches."""
    engine = engine_of(gradient_accumulation_steps=2, **keys)
    for _ in range(4):
        backward(engine, engine(x.to(engine.module.outer.weight.dtype)))
        engine.step()
    return values_hash(engine)


class BackwardOfATensor(Fixture):
    def test_is_that_of_the_engine(self):
        for keys in ({}, {"fp16": {"enabled": True, "initial_scale_power": 4}}, {"torch_autocast": {"enabled": True}}):
            expected = trained(lambda engine, out: engine.backward(out.float().square().mean()), **keys)
            self.assertEqual(trained(lambda engine, out: out.float().square().mean().backward(), **keys), expected)
            self.assertEqual(trained(lambda engine, out: engine.scale(out.float().square().mean()).backward(), **keys), expected)

    def test_with_a_gradient_of_its_own_is_that_of_their_product(self):
        gradient = torch.tensor([[1.0], [-2.0], [0.5], [0.0]])
        self.assertEqual(trained(lambda engine, out: out.backward(gradient)),
                         trained(lambda engine, out: engine.backward((out * gradient).sum())))

    def test_of_several_losses_takes_their_sum_alone(self):
        engine = engine_of()
        first, second = engine(x).mean(), engine(x + 1).square().mean()
        first.backward(retain_graph=True)
        self.raises(capstan.RuntimeFault, "this forward has had its backward", engine.backward, second)

    def test_stays_torchs_for_all_other_tensors(self):
        engine = engine_of()
        loss = engine(x).square().mean()
        other = Net()
        other(x).sum().backward()
        self.assertGreater(float(other.outer.weight.grad.abs().sum()), 0)
        leaf = torch.ones(3, requires_grad=True)
        (leaf * leaf).backward(torch.ones(3), create_graph=True)
        self.assertEqual(leaf.grad.tolist(), [2, 2, 2])
        loss.backward()
        engine.step()
        self.assertEqual(engine.global_steps, 1)

    def test_refuses_what_the_engine_cannot_keep(self):
        engine = engine_of()
        loss = engine(x).square().mean()
        self.raises(capstan.RuntimeFault, "backward: create_graph=True is not for what an engine returned", loss.backward,
                    create_graph=True)
        self.raises(capstan.RuntimeFault, "backward: inputs is not for what an engine returned", loss.backward, inputs=[x])
        self.raises(capstan.RuntimeFault, "backward: the loss must be a scalar, got a tensor of shape [4, 1]", engine(x).backward)

    def test_through_two_engines_is_refused_before_anything_is_computed(self):
        first, second = engine_of(torch.nn.Linear(4, 4)), engine_of()
        for backward in (second.backward, torch.Tensor.backward):
            loss = second(first(x)).square().mean()
            before = values_hash(second)
            self.raises(capstan.RuntimeFault, "the loss goes through two engines", backward, loss)
            hidden = first(x)
            leaf = hidden.detach().requires_grad_()
            second(leaf).square().mean().backward()
            second.step()
            (hidden * leaf.grad).sum().backward()
            first.step()
            self.assertNotEqual(values_hash(second), before)

    def test_at_every_stage_in_two_processes(self):
        told, _ = in_processes(2, "backwards.py")
        for rank in told:
            for stage, (engines, tensors) in rank.items():
                self.assertEqual(engines, tensors, f"stage {stage}")
