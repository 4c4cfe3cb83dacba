"""What a program does at ZeRO stage 3 outside of forward and backward, in two processes. Tells what it saw."""

import copy
import io
import os
import pickle
import sys

import torch

import capstan
from models import Transformer, batches, next_token_loss, part, tokens
from some_parameters import apart_from_plain
from support import config, tell, values_hash

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = sys.argv[1]
told = {}


def build(stage=3, seed=1):
    torch.manual_seed(seed)
    return capstan.initialize(model=Transformer(), config=config(stage))[0]


def train(engine, data):
    for batch in data:
        engine.backward(next_token_loss(engine, part(batch, rank, size)))
        engine.step()


def outcome(function):
    """"value", or the sentence."""
    try:
        function()
        return "value"
    except RuntimeError as error:
        return str(error)


data = batches(tokens, 6, 4 * size)
engine = build()
train(engine, data[:1])
net = engine.module
weight = net.blocks[0].linear1.weight
writes = {
    "zero_": lambda: weight.detach().zero_(),
    "setitem": lambda: weight.data.__setitem__(0, 0.0),
}
reads = {
    "print": lambda: repr(weight), "numpy": lambda: weight.detach().numpy(), "deepcopy": lambda: copy.deepcopy(net),
    "pickle": lambda: pickle.dumps(net), "torch.save": lambda: torch.save(net.state_dict(), io.BytesIO()),
    "clone": lambda: weight.clone(), "sum": lambda: weight.sum().item(), "tolist": lambda: weight.tolist(),
    "data_ptr": lambda: weight.data_ptr(), "matmul": lambda: weight @ weight.T, "forward": lambda: net(data[0]["tokens"]),
}
told["outside"] = {name: outcome(use) for name, use in {**reads, **writes}.items()}
told["shapes"] = [list(weight.shape), sorted(net.state_dict()) == sorted(name for name, _ in net.state_dict().items())]
with engine.gather():
    told["copies have no part in the engine"] = (
        copy.deepcopy(net).forward.__self__ is not net and pickle.loads(pickle.dumps(net)).forward.__self__ is not net)
    told["inside"] = {name: outcome(use) for name, use in reads.items()}
    whole = copy.deepcopy(net)
told["copy"] = float(sum(p.detach().double().sum() for p in whole.parameters()))
told["hash after reading"] = values_hash(engine)



# As programs for DeepSpeed read one parameter.
def maybe_zero_3(parameter):
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().cpu().clone()
    if parameter.ds_status != capstan.zero.ZeroParamStatus.NOT_AVAILABLE:
        return None
    with capstan.zero.GatheredParameters([parameter]):
        return parameter.data.detach().cpu().clone()


told["maybe_zero_3"] = all(torch.equal(maybe_zero_3(p), whole.get_parameter(name)) for name, p in net.named_parameters())
told["ids"] = [len({p.ds_id for p in net.parameters()}), len(list(net.parameters()))]

# Whole values in a file, where the configuration asks for them.
told["not saved"] = engine.save_16bit_model(folder + "-16bit")
keys = config(3)
keys["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
torch.manual_seed(1)
saving = capstan.initialize(model=Transformer(), config=keys)[0]
train(saving, data[:1])
saving.save_16bit_model(folder + "-16bit")
with saving.gather():
    told["saved"] = rank > 0 or all(torch.equal(value, saving.module.state_dict()[name]) for name, value in torch.load(
        os.path.join(folder + "-16bit", "pytorch_model.bin")).items())

# Values that a rank writes are those of all, in the masters as well.
with capstan.zero.GatheredParameters([weight], modifier_rank=0):
    if rank == 0:
        with torch.no_grad():
            weight.fill_(0.25)
with engine.gather([weight]):
    told["written"] = [weight.min().item(), weight.max().item()]
train(engine, data[1:2])

# A model's exception on all ranks, and the engine goes on.
try:
    engine(data[0]["tokens"][:, :0].float())
except Exception as error:
    told["exception"] = type(error).__name__

# Evaluation between a forward and its backward.
loss = next_token_loss(engine, part(data[2], rank, size))
with torch.no_grad():
    other = engine(part(data[3], rank, size)["tokens"])
told["evaluation has no graph"] = not other.requires_grad
engine.backward(loss)
engine.step()

# The same run without all that ends in the same place.
quiet = build()
train(quiet, data[:1])
with quiet.gather(quiet.module.blocks[0].linear1.weight, written_by=1):
    if rank == 1:
        with torch.no_grad():
            quiet.module.blocks[0].linear1.weight.fill_(0.25)
train(quiet, data[1:3])
told["same as quiet"] = values_hash(quiet) == values_hash(engine)

# Two engines by turns, and many in a row.
first, second = build(seed=1), build(seed=2)
for batch in data[:3]:
    train(first, [batch])
    train(second, [batch])
alone = build(seed=2)
train(alone, data[:3])
told["two engines"] = values_hash(second) == values_hash(alone)
for i in range(30):
    engine = build(seed=1)
    train(engine, data[:1])
    if i % 2:
        engine.destroy()
train(engine := build(seed=1), data[:3])
told["after thirty"] = values_hash(engine) == values_hash(first)

# Save, go on, resume.
engine.save_checkpoint(folder)
train(engine, data[3:])
resumed = build(seed=9)
resumed.load_checkpoint(folder)
train(resumed, data[3:])
told["resumed"] = values_hash(resumed) == values_hash(engine)

# Handed over to another engine: the values come back.
third = capstan.initialize(model=resumed.module, config=config(3))[0]
told["handed over"] = values_hash(third) == values_hash(engine)
with torch.no_grad():
    told["module alone"] = list(third.module(data[0]["tokens"]).shape)

told["marks"] = all(hasattr(p, "ds_id") for p in third.module.parameters())
third.destroy(gather=True)
told["marks are gone"] = not any(hasattr(p, "ds_id") for p in third.module.parameters())
third = capstan.initialize(model=third.module, config=config(3))[0]
told["generated"] = list(third._evaluate(lambda: third.module(data[0]["tokens"])).shape)

# What stages above 0 refuse.
def no_sync():
    with third.no_sync():
        pass


class Own(torch.optim.Optimizer):
    pass


keys = config(3)
del keys["optimizer"]
own = Transformer()
told["no_sync"] = outcome(no_sync)
try:
    capstan.initialize(model=own, config=keys, optimizer=Own(own.parameters(), {"lr": 1}))
except capstan.ConfigError as error:
    told["own optimizer"] = str(error)

told["some parameters"] = apart_from_plain(rank)
tell(told)
