"""At ZeRO stages 0 and 3, in several processes: trains, saves without frozen parameters, and loads that. frozen.py FOLDER"""

import os
import sys

import torch

import capstan
from models import frozen_net
from support import config, tell, values_hash

told = {}
for stage in (0, 3):
    folder = os.path.join(sys.argv[1], str(stage))
    engine = capstan.initialize(model=frozen_net(), config=config(stage))[0]
    for _ in range(2):
        engine.backward(engine(torch.ones(4, 6)).square().mean())
        engine.step()
    engine.save_checkpoint(folder, "one", exclude_frozen_parameters=True)
    resumed = capstan.initialize(model=frozen_net(), config=config(stage))[0]
    resumed.load_checkpoint(folder)
    told[stage] = [values_hash(engine), values_hash(resumed)]
tell(told)
