"""Probabilities of transformers' logits processors: sampling_reference.py LOGIT,LOGIT,... TEMPERATURE TOP_K TOP_P"""
import sys

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

logits = torch.tensor([[float(word) for word in sys.argv[1].split(",")]], dtype=torch.float64)
processors = LogitsProcessorList([TemperatureLogitsWarper(float(sys.argv[2])), TopKLogitsWarper(int(sys.argv[3])),
                                  TopPLogitsWarper(float(sys.argv[4]))])
print(*(f"{p:.9f}" for p in processors(None, logits).softmax(-1)[0].tolist()))
