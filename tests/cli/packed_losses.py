"""Fine-tunes a small Llama of transformers beside 'capstan train', on the same packed rows.

    packed_losses.py CAPSTAN FOLDER

FOLDER holds chats.idx, .bin, .loss and .rows as 'capstan data chat --pack' writes them, and takes the model. Reads them
with numpy alone, trains with transformers' model, a block-diagonal mask and torch.optim.AdamW, and prints "20 losses are
equal" or ends with an error.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

STEPS, BATCH, ADAM = 20, 4, dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def packed_rows(name):
    """input_ids, labels, document numbers and positions, [rows, length] each; labels as transformers shifts them."""
    idx, tokens = open(name + ".idx", "rb").read(), numpy.fromfile(name + ".bin", "<u2")
    count = int.from_bytes(idx[18:26], "little")
    sizes = numpy.frombuffer(idx, "<i4", count, 34)
    mask = numpy.unpackbits(numpy.fromfile(name + ".loss", "u1"), bitorder="little")
    rows = open(name + ".rows", "rb").read()
    length, count = (int.from_bytes(rows[at : at + 8], "little") for at in (8, 16))
    first = numpy.frombuffer(rows, "<i8", count + 1, 24)
    starts = numpy.concatenate([[0], numpy.cumsum(sizes)])
    ids, labels = numpy.zeros((count, length), "i8"), numpy.full((count, length), -100)
    documents, positions = numpy.full((count, length), -1), numpy.zeros((count, length), "i8")
    for row in range(count):
        used = 0
        for document in range(first[row], first[row + 1]):
            begin, size = starts[document], sizes[document]
            place = slice(used, used + size)
            ids[row, place], documents[row, place] = tokens[begin : begin + size], document
            positions[row, place] = numpy.arange(size)
            labels[row, place] = numpy.where(mask[begin : begin + size], ids[row, place], -100)
            labels[row, used] = -100
            used += size
    return tuple(torch.tensor(one, dtype=torch.long) for one in (ids, labels, documents, positions))


def train(folder, rows):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    ids, labels, documents, positions = rows
    causal = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril()
    losses = []
    for step in range(STEPS):
        some = [i % len(ids) for i in range(step * BATCH, (step + 1) * BATCH)]
        mask = (documents[some].unsqueeze(1) == documents[some].unsqueeze(2)) & causal
        loss = model(input_ids=ids[some], labels=labels[some], position_ids=positions[some],
                     attention_mask=mask.unsqueeze(1), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(capstan, folder):
    os.chdir(folder)
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=257, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)).save_pretrained("model")
    config = {"train_batch_size": BATCH, "gradient_clipping": 1.0, "steps_per_print": 1,
              "optimizer": {"type": "AdamW", "params": {**ADAM, "betas": list(ADAM["betas"])}},
              "csv_monitor": {"enabled": True, "output_path": "metrics", "job_name": "beside"},
              "capstan": {"data": {"path": "chats.idx", "format": "indexed", "shuffle": False}}}
    Path("beside.json").write_text(json.dumps(config))
    subprocess.run([capstan, "train", "--config", "beside.json", "--model", "hf:model", "--steps", str(STEPS), "--no-progress"],
                   check=True, stdout=subprocess.DEVNULL)
    ours = [float(line.split(",")[1]) for line in Path("metrics/beside/Train_Samples_train_loss.csv").read_text().split("\n")[1:] if line]
    theirs = train("model", packed_rows("chats"))
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert apart < 1e-5, (apart, ours, theirs)
    assert theirs[-1] < 0.8 * theirs[0], theirs
    print(f"{STEPS} losses are equal, {apart:.1e} apart")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
