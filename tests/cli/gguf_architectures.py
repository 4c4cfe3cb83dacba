"""Folders of transformers that capstan exports to GGUF files, and what llama.cpp makes of those.

  gguf_architectures.py make FOLDER     writes FOLDER/NAME for each of the names below, bytes and sentences with tokenizers
  gguf_architectures.py check FOLDER    holds FOLDER/NAME.gguf, which capstan has written, against transformers: logits, and
                                        of bytes and sentences texts, chat templates and greedy tokens, which it prints
"""
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from llama_cpp import LlamaCpp
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

VOCABULARY = 400
SIZE = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)  # fmt: skip
GEMMA = dict(head_dim=32, tie_word_embeddings=True)
FOLDERS = {
    "bytes": ("llama", dict(attention_bias=True)),
    "sentences": ("gemma3_text", dict(head_dim=32, sliding_window=8, query_pre_attn_scalar=32, layer_types=[
        "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"])),
    "gemma": ("gemma", GEMMA),
    "olmo": ("olmo", dict(clip_qkv=0.3)),
    "olmo2": ("olmo2", {}),
    "stablelm": ("stablelm", dict(use_qkv_bias=True)),
    "granite": ("granite", dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2,
                                logits_scaling=4.0, tie_word_embeddings=True)),
    "smollm3": ("smollm3", dict(tie_word_embeddings=True)),
}  # fmt: skip
IDS = [1, 200, 97, 31, 255, 8, 77, 300, 12, 12, 5, 399, 140, 60, 61, 62, 201, 18, 42, 350]
TEXTS = ["Hello, world! It's 12345.", "  two  spaces\n\nand lines ", "naïve café \u00e9\u4e2d\u6587 \U0001f600",
         "<|user|>hi<|end|> there", "a", "The licence says: <s> </s> <unk>", "0x41 tab\there"]  # fmt: skip
PROMPT = "The licence "


def licences():
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path("/usr/share/common-licenses").glob("*"))]


def write_byte_tokenizer(folder):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")  # fmt: skip
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(licences()[:3], trainers.BpeTrainer(
        vocab_size=VOCABULARY - 20, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|begin|>", "<|user|>", "<|end|>")])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>",
        "chat_template": "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"}))


def write_sentence_pieces(folder):
    import sentencepiece

    model = io.BytesIO()
    lines = (line for text in licences()[:3] for line in text.splitlines() if line.strip())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=VOCABULARY - 10, minloglevel=2, num_threads=1,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>",
        user_defined_symbols=["<|user|>", "<|end|>"], allow_whitespace_only_pieces=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GemmaTokenizer", "add_bos_token": True,
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}))  # fmt: skip
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}<|end|>")


def make(folder):
    for name, (kind, more) in FOLDERS.items():
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZE, **more}), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(folder / name)
    write_byte_tokenizer(folder / "bytes")
    write_sentence_pieces(folder / "sentences")


def check(folder):
    for name in FOLDERS:
        model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()
        theirs = LlamaCpp(folder / f"{name}.gguf")
        with torch.no_grad():
            expected = model(torch.tensor([IDS])).logits[0].double().numpy()
        found = theirs.logits(IDS)
        assert theirs.size == VOCABULARY, (name, theirs.size)
        difference = np.abs(found - expected).max() / np.abs(expected).max()
        # llama.cpp keeps keys and values in 16 bits.
        assert difference < 1e-2, (name, difference)
        if name in ("bytes", "sentences"):
            check_text(folder, name, model, theirs)


def check_text(folder, name, model, theirs):
    tokenizer = AutoTokenizer.from_pretrained(folder / name)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == theirs.tokenize(text), (name, text, theirs.tokenize(text))
    assert theirs.chat_template() == tokenizer.chat_template, (name, theirs.chat_template())
    prompt = tokenizer(PROMPT)["input_ids"]
    made = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                          max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)  # fmt: skip
    greedy = made[0, len(prompt) :].tolist()
    assert theirs.greedy(theirs.tokenize(PROMPT), 12) == greedy, (name, greedy)
    print(*prompt, sep=",")
    print(*greedy, sep=",")


if __name__ == "__main__":
    torch.set_num_threads(1)
    (make if sys.argv[1] == "make" else check)(Path(sys.argv[2]))
