"""Modules under torch.compile at ZeRO stage 3, in two processes, by each backend that is named. Tells whether the parameters are
those of the plain module, or the sentence.

    compiled.py BACKEND...
"""

import os
import sys

import capstan
from models import Transformer, batches, next_token_loss, part, tokens
from support import config, tell, values_hash

import torch

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(backend):
    torch.manual_seed(1)
    net = Transformer()
    if backend:
        net.compile(backend=backend)
    engine = capstan.initialize(model=net, config=config(3))[0]
    for batch in batches(tokens, 2, 4 * size):
        engine.backward(next_token_loss(engine, part(batch, rank, size)))
        engine.step()
    return values_hash(engine)


told = {"plain": train(None)}
for backend in sys.argv[1:]:
    try:
        told[backend] = train(backend)
    except RuntimeError as error:
        told[backend] = str(error)
tell(told)
