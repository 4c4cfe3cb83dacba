"""Fine-tunes a causal model of Hugging Face's transformers on a text file, with their Trainer and a DeepSpeed file.

    python fine_tune.py MODEL TEXT ds_config.json OUT

On GPUs in several processes: torchrun --nproc-per-node 2 fine_tune.py ... Without one accelerate takes no backend by itself; see
docs/reference/python.md.
"""

import capstan.deepspeed  # noqa: F401  (stands in for deepspeed: before transformers)

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

name, text, config, out = sys.argv[1:]
length = 64
tokenizer = AutoTokenizer.from_pretrained(name)
with open(text, encoding="utf-8") as file:
    ids = tokenizer(file.read())["input_ids"]
data = [{"input_ids": ids[i : i + length], "labels": ids[i : i + length]} for i in range(0, len(ids) - length + 1, length)]
arguments = TrainingArguments(output_dir=out, deepspeed=config, per_device_train_batch_size=4, max_steps=20, logging_steps=5,
                              report_to=[])
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained(name), args=arguments, train_dataset=data)
trainer.train()
trainer.save_model(out)
