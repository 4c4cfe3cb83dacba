"""Compares what 'capstan data chat' writes with the ids and assistant masks of transformers.

    chat_masks.py CAPSTAN FOLDER

Prints "N conversations are equal" or ends with an error. FOLDER takes the files.
"""
import json
import subprocess
import sys
from pathlib import Path

import numpy
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "core/text"))
import tokenizer_cases  # noqa: E402

TEMPLATE = """{% for message in messages %}
<|turn|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|stop|>{% endgeneration %}
{% else %}{{ message.content }}<|stop|>
{% endif %}
{% endfor %}"""
CHATS = [[{"role": "user", "content": "Is 2 + 2 four?"}, {"role": "assistant", "content": "Yes,  it is.\n\nAlways."},
          {"role": "user", "content": "\u00e9\u4e2d\U0001f600"}, {"role": "assistant", "content": "\n\n \u00e9 it's"}],
         [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": ""}],
         [{"role": "assistant", "content": "   "}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c\n"}]]


def main(capstan, folder):
    tokenizer = next(of for name, of in tokenizer_cases.bpe_tokenizers() if name == "llama3")
    tokenizer.add_special_tokens([AddedToken("<|turn|>", normalized=False), AddedToken("<|stop|>", normalized=False)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|stop|>", chat_template=TEMPLATE)
    wrapped.save_pretrained(folder / "model")
    with open(folder / "chats.jsonl", "w") as lines:
        lines.writelines(json.dumps({"messages": chat}) + "\n" for chat in CHATS)
    subprocess.run([capstan, "data", "chat", "chats.jsonl", "--tokenizer", "model", "--out", "chats.idx"], cwd=folder, check=True)
    ids = numpy.fromfile(folder / "chats.bin", "<u2").tolist()
    mask = numpy.unpackbits(numpy.fromfile(folder / "chats.loss", "u1"), bitorder="little")[: len(ids)].tolist()
    wanted_ids, wanted_mask = [], []
    for chat in CHATS:
        encoded = wrapped.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        wanted_ids += encoded["input_ids"]
        wanted_mask += encoded["assistant_masks"]
    assert ids == wanted_ids, (ids, wanted_ids)
    assert mask == wanted_mask, (mask, wanted_mask)
    assert 0 < sum(mask) < len(mask)
    print(f"{len(CHATS)} conversations are equal")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
