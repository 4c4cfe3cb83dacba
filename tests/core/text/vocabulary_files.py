"""Tokenizers whose folders have no tokenizer.json, each with texts, their ids and what the ids decode to.

    vocabulary_files.py FOLDER

FOLDER/NAME has tokenizer.model, trained by the sentencepiece library on Debian's licence texts, or ranks of tiktoken.
FOLDER/NAME.jsonl has lines {"text": ..., "ids": [...], "decoded": ...}: the ids are those of transformers where the folder
names a class of it, and otherwise those of sentencepiece and tiktoken themselves.
"""
import base64
import io
import json
import shutil
import sys
import unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizer_cases import CORPUS, GPT4O, LLAMA3, QWEN, VOCABULARY, is_newer, nasty_texts, random_texts

LINES = [line for text in CORPUS[:5] for line in text.splitlines() if line.strip()]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def trained(folder, config, file="tokenizer.model", **options):
    folder.mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=VOCABULARY, minloglevel=2, num_threads=1, **options)
    (folder / file).write_bytes(model.getvalue())
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


LLAMA = dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
             split_digits=True, allow_whitespace_only_pieces=True, max_sentencepiece_length=16, character_coverage=0.9995)


def of_transformers(folder, kind):
    # The files are local; a class reads tokenizer_config.json itself.
    return kind.from_pretrained(folder, local_files_only=True)


def folders_of_transformers(folder):
    from transformers import GemmaTokenizer, LlamaTokenizer, T5Tokenizer

    llama = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "bos_token": "<s>",
             "eos_token": "</s>", "unk_token": "<unk>"}
    trained(folder / "llama", llama, user_defined_symbols=["<|user|>", "[R]"], **LLAMA)
    yield folder / "llama", of_transformers(folder / "llama", LlamaTokenizer)
    shutil.copytree(folder / "llama", folder / "llama_legacy")
    (folder / "llama_legacy/tokenizer_config.json").write_text(json.dumps({**llama, "legacy": True}))
    yield folder / "llama_legacy", of_transformers(folder / "llama_legacy", LlamaTokenizer)
    name = folder / "gemma"
    trained(name, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
            bos_piece="<bos>", eos_piece="<eos>", user_defined_symbols=["<mask>", "<start_of_turn>"],
            **{**LLAMA, "add_dummy_prefix": False})
    yield name, of_transformers(name, GemmaTokenizer)
    name = folder / "t5"
    trained(name, {"tokenizer_class": "T5Tokenizer", "extra_ids": 100}, file="spiece.model", model_type="unigram",
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    yield name, of_transformers(name, T5Tokenizer)


def plain_folders(folder):
    for name, options in (
            ("bpe_trims", {**LLAMA, "remove_extra_whitespaces": True, "normalization_rule_name": "nmt_nfkc"}),
            ("bpe_without_bytes", {**LLAMA, "byte_fallback": False}), ("unigram", dict(model_type="unigram")),
            ("unigram_bytes", dict(model_type="unigram", byte_fallback=True, add_dummy_prefix=False,
                                   remove_extra_whitespaces=False, split_by_whitespace=False))):
        yield folder / f"sentencepiece_{name}", trained(folder / f"sentencepiece_{name}", None, **options)


def ranks(pattern):
    """Ranks of the bytes and of the commonest pairs of them, as tiktoken's own trainer finds them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(CORPUS[:3], trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    byte_of = {chr(byte): byte for byte in printable}
    byte_of.update({chr(0x100 + i): byte for i, byte in enumerate(b for b in range(256) if b not in printable)})
    return {bytes(byte_of[c] for c in token): rank for token, rank in tokenizer.get_vocab().items()}


def tiktoken_folders(folder):
    qwen = {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"}
    qwen.update({151646 + i: f"<|extra_{i}|>" for i in range(205)})
    for name, file, pattern, special, config in (
            ("gpt2", "gpt2.tiktoken", GPT2, {50256: "<|endoftext|>"}, None),
            ("qwen", "qwen.tiktoken", QWEN, qwen, None),
            ("o200k", "o200k_base.tiktoken", GPT4O, {199999: "<|endoftext|>", 200018: "<|endofprompt|>"}, None),
            ("told", "tokenizer.model", LLAMA3, {1500: "<s>", 1502: "<|endoftext|>"}, {"pat_str": LLAMA3})):
        at = folder / f"tiktoken_{name}"
        at.mkdir()
        of = ranks(pattern)
        (at / file).write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank
                                         for token, rank in sorted(of.items(), key=lambda item: item[1])))
        if config is not None:
            config["added_tokens_decoder"] = {str(id): {"content": text, "special": True} for id, text in special.items()}
            (at / "tokenizer_config.json").write_text(json.dumps(config))
        yield at, tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=of,
                                    special_tokens={text: id for id, text in special.items()})


def is_told_apart(text):
    """Whether transformers, whose ids ours are, takes a text otherwise than sentencepiece: special tokens that are written
    in it, characters of several code points where the map of characters has one of them, and equal sums of scores."""
    return (any(token in text for token in ("<s>", "<unk>", "</s>", "\r\n", "**********", "----------", "xxxxxxxxxx"))
            or any(unicodedata.category(character)[0] == "M" for character in text))


def rows_of(tokenizer, texts):
    if isinstance(tokenizer, sentencepiece.SentencePieceProcessor):
        texts = [text for text in texts if not is_told_apart(text)]
    for text in texts:
        if isinstance(tokenizer, tiktoken.Encoding):
            ids = tokenizer.encode(text, allowed_special="all")
            special = set(tokenizer.special_tokens_set)
            decoded = tokenizer.decode([id for id in ids if tokenizer.decode_single_token_bytes(id).decode(
                errors="replace") not in special])
        elif isinstance(tokenizer, sentencepiece.SentencePieceProcessor):
            ids = tokenizer.encode(text)
            # sentencepiece writes " ⁇ " for an unknown piece, where the tokenizers library leaves it out.
            decoded = tokenizer.decode(ids) if tokenizer.unk_id() not in ids else None
        else:
            ids = tokenizer(text)["input_ids"]
            decoded = None
        yield {"text": text, "ids": ids, **({} if decoded is None else {"decoded": decoded})}


def main(folder):
    texts = ["".join(character for character in text if not is_newer(character))
             for text in CORPUS + nasty_texts() + random_texts()]
    for make in (folders_of_transformers, plain_folders, tiktoken_folders):
        for name, tokenizer in make(folder):
            with open(f"{name}.jsonl", "w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows_of(tokenizer, texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
