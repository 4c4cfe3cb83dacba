"""transformers' Trainer with a DeepSpeed configuration, unchanged but for its first line. Trains a GPT-2 to step 4 with a
checkpoint at step 2, then another from that checkpoint on. Tells the losses and hashes of weights of both.

    hf_trainer.py STAGE FOLDER
"""

import capstan.deepspeed  # noqa: F401  (before transformers)

import copy
import hashlib
import os
import sys

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from safetensors import safe_open
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

from models import VOCABULARY, gpt2
from support import tell

stage, folder = int(sys.argv[1]), sys.argv[2]
# Without a GPU accelerate takes no backend by itself, and several processes would be so many runs.
os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
PartialState(backend="gloo")
ds_config = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "zero_optimization": {"stage": stage, "overlap_comm": True, "reduce_bucket_size": "auto",
                          "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": 0,
                          "stage3_gather_16bit_weights_on_model_save": True},
}
if stage == 2:
    ds_config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                             "warmup_num_steps": "auto"}}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def run(out, checkpoint=None):
    AcceleratorState._reset_state()  # accelerate takes a plugin once in a process
    arguments = TrainingArguments(
        output_dir=out, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4, save_steps=2,
        learning_rate=1e-2, warmup_steps=2, logging_steps=1, report_to=[], deepspeed=copy.deepcopy(ds_config), seed=5,
        disable_tqdm=True, eval_strategy="steps", eval_steps=2, accelerator_config={"use_configured_state": True})
    set_seed(5)
    trainer = Trainer(model=gpt2(), args=arguments, train_dataset=Data(), eval_dataset=Data())
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(os.path.join(out, "final"))
    torch.distributed.barrier()
    opened = AutoModelForCausalLM.from_pretrained(os.path.join(out, "final"))
    with safe_open(os.path.join(out, "final", "model.safetensors"), "pt") as file:
        saved = list(file.keys())
    digest = hashlib.sha256()
    for name, value in sorted(opened.state_dict().items()):
        digest.update(name.encode() + value.contiguous().view(-1).numpy().tobytes())
    generated = opened.generate(torch.zeros(1, 1, dtype=torch.long), max_new_tokens=4, do_sample=False)
    history = trainer.state.log_history
    found = {key: [entry[key] for entry in history if key in entry] for key in ("loss", "grad_norm", "eval_loss", "learning_rate")}
    return {**found, "engine": type(trainer.model_wrapped).__module__, "hash": digest.hexdigest(),
            "generated": list(generated.shape), "saved": saved}


first = run(os.path.join(folder, "first"))
again = run(os.path.join(folder, "again"), os.path.join(folder, "first", "checkpoint-2"))
tell([first, again])
torch.distributed.destroy_process_group()
