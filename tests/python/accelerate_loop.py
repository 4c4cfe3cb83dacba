"""A training loop as accelerate's examples have it, with torch's AdamW and a schedule of one's own, and a DeepSpeed plugin.

    accelerate_loop.py STAGE FOLDER
"""

import capstan.deepspeed  # noqa: F401  (before accelerate)

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

from models import VOCABULARY, gpt2
from support import tell

stage, folder = int(sys.argv[1]), sys.argv[2]
data = [torch.randint(0, VOCABULARY, (12,), generator=torch.Generator().manual_seed(i)) for i in range(32)]


def train():
    accelerator = Accelerator(
        gradient_accumulation_steps=2, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=2, gradient_clipping=1.0,
                                         zero3_save_16bit_model=True))
    torch.manual_seed(1)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses, rates = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        rates.append(model.get_lr()[0])
    state = accelerator.get_state_dict(model)
    accelerator.save_state(os.path.join(folder, "state"))
    accelerator.load_state(os.path.join(folder, "state"))
    return {"losses": losses, "rates": rates, "steps": model.global_steps, "engine": type(model).__module__,
            "state": None if state is None else sorted(state) == sorted(accelerator.unwrap_model(model).state_dict())}


tell(train())
torch.distributed.destroy_process_group()
