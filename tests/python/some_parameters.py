"""At every stage, each rank on half of the rows: trains the head of a model alone, and a model one of whose micro-batches the
program throws away."""

from torch import optim

import capstan
from test_optimizers import Net, apart, config, inputs, loss_of, plain, values


def trained(rank, make, drops, **keys):
    net = Net()
    engine = capstan.initialize(model=net, optimizer=make(net), config=config(**keys))[0]
    for place, x in enumerate(inputs(net)):
        if drops:
            engine.backward(loss_of(engine(x.chunk(2)[rank] * 1000), 100))
            engine.step()
            engine.zero_grad()
        engine.backward(loss_of(engine(x.chunk(2)[rank]), place))
        engine.step()
    with engine.gather():
        found = values(net)
    engine.destroy()
    return found


def apart_from_plain(rank):
    """How far values are from those of plain PyTorch, by stage and by what was done."""
    head = plain(lambda net: optim.AdamW(net.head.parameters(), lr=0.02), clip=0.05)[0]
    # A step of two micro-batches of which one was dropped has half of the gradient.
    half = plain(lambda net: optim.SGD(net.parameters(), lr=0.1))[0]
    found = {}
    for stage in range(4):
        zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
        some = trained(rank, lambda net: optim.AdamW(net.head.parameters(), lr=0.02), False, gradient_clipping=0.05,
                       zero_optimization=zero)
        dropped = trained(rank, lambda net: optim.SGD(net.parameters(), lr=0.2), True, train_batch_size=8,
                          gradient_accumulation_steps=2, zero_optimization=zero)
        found[f"head, stage {stage}"], found[f"dropped, stage {stage}"] = apart(head, some), apart(half, dropped)
    return found
