"""Engines of two processes that end in another order on each rank, and after one rank has left or failed in the middle of a
step; those that follow train as if nothing had been. Tells what it saw."""

import gc
import os
import sys

import torch

import capstan
from models import Transformer, batches, next_token_loss, part, tokens
from support import config, tell, values_hash

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
stage = int(sys.argv[1])
data = batches(tokens, 3, 4 * size)
told = {}


def build(seed=1):
    torch.manual_seed(seed)
    return capstan.initialize(model=Transformer(), config=config(stage))[0]


def train(engine, some=data):
    for batch in some:
        engine.backward(next_token_loss(engine, part(batch, rank, size)))
        engine.step()


def trained_hash():
    engine = build()
    train(engine)
    return values_hash(engine)


def failure(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


quiet = trained_hash()
engines = [build(), build(seed=2)]
for engine in engines:
    train(engine, data[:1])
del engine
for _ in range(2):
    engines.pop(-1 if rank == 0 else 0)
    gc.collect()
told["after another order"] = trained_hash() == quiet

engine = build()
if rank == 1:
    engine.destroy()
else:
    told["left"] = failure(train, engine)
del engine
told["after one has left"] = trained_hash() == quiet

engine = build()
told["raised"] = failure(engine, data[0]["tokens"].float()) if rank == 1 else failure(train, engine)
del engine
gc.collect()
told["after one has raised"] = trained_hash() == quiet
tell(told)
