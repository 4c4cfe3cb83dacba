"""Tokenizers of every kind that Capstan reads, each with texts, their ids and what the ids decode to.

    tokenizer_cases.py FOLDER

The tokenizers library trains them here, on Debian's licence texts. FOLDER/NAME/tokenizer.json is a tokenizer, and
FOLDER/NAME.jsonl has lines {"text": ..., "ids": [...], "decoded": ...}.
"""
import base64
import json
import random
import struct
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LICENCES = sorted(Path("/usr/share/common-licenses").glob("*"))
CORPUS = [path.read_text(encoding="utf-8", errors="replace") for path in LICENCES]
VOCABULARY = 1500

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def is_newer(character):
    """Whether versions of Unicode may disagree on a character: the tokenizers library takes normalization and punctuation
    from Unicode 8, words from 16; PCRE2 10.42 has 14 and utf8proc 2.8 has 15. Python tells 14 from 3.2."""
    category = unicodedata.category(character)
    if category == "Cn":
        return True
    is_old = unicodedata.ucd_3_2_0.category(character) != "Cn"
    return not is_old and (category[0] in "MP" or unicodedata.decomposition(character) != "")


def nasty_texts():
    """Texts at which tokenizers have been seen to differ."""
    return [
        "", " ", "  ", "\n", "\t \n", "a", " a", "a ", "\u180e x", "a\u180eb", "a\u200bb c", "\u00a0\u00a0x",
        "\u3000\u3000\u65e5\u672c", "\x85a\x85\x85 b", "I\u2019m don't WE'RE it'\u017f 'S 'LL",
        "\uff11\uff12\uff13\uff14\uff15 \u0663\u0664\u0665 \u2163\u2167 \u00bd\u00b2", "1234567 12 1,234.5",
        "e\u0301 \u00e9 \u00c5 \u212b \ufb01 \ufb03", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
        "\r\n\r\n \n\n\t x\r", "<|endoftext|>x<|endoftext|>", "x <s> y </s>", "a <mask> b<mask>\u3000\tc", "[R]  x [R]\n",
        "wor word worlds wor.wor \u24d0wor wor\u0301", "TOK tok Tok\u200d", "<|end <|endoftext <|endoftext|>>", "\x00\x01\x1f\x7f\x85",
        "\ufeffBOM", "\u0b95\u0bcd\u0bb7", "\u0e01\u0e47 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
        "\ud55c\uae00 \u3131 \u1100", "\u4e2d\u6587\uff0c\u6807\u70b9\u3002\uff01", "a" * 300, " " * 77, "\n" * 33,
        "ab " * 50, "ab" * 70, "\U0001f600" * 20, "\U000e0041\U0010ffff", "\u1e9e \u00df SS \u0130 \u0131", "\U0001d400\U0001d7d8",
        "\u2028\u2029x", "\u02bcn \u0149", "a\u0300\u0301\u0302\u0303b", "\u2581x \u2581 \u2581\u2581", "<0x41><unk>",
        "\u0903\u0915\u20dd", "Hello, world! It's 3.14 (don't).  Do not.", "x" * 100 + " " + "y" * 101, "foo,,bar..baz!!",
        "\u2460\u2461 \u00ad\u00ad x\u00ad", "\u0301\u0301", "tabs\t\tand  spaces   end   ", "\u0085\u2003x",
    ]


def random_texts():
    """Texts of one Unicode range each, by themselves and between ASCII."""
    ranges = [(0, 0x7f), (0x80, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x600, 0x6ff), (0x900, 0xdff), (0xe00, 0xfff),
              (0x1000, 0x139f), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2100, 0x27ff), (0x3000, 0x30ff), (0x4e00, 0x9fff),
              (0xac00, 0xd7a3), (0xf900, 0xffff), (0x10000, 0x1ffff), (0x1f300, 0x1faff), (0x20000, 0x2ffff)]
    made = random.Random(7)

    def some(low, high, count):
        points = (made.randint(low, high) for _ in range(count))
        return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)

    texts = []
    for low, high in ranges:
        for _ in range(12):
            texts.append(some(low, high, made.randint(1, 12)))
            texts.append(texts[-1] + " " + some(0, 0x7f, 6) + some(low, high, 3) + made.choice([" ", "\n", "  ", "\t"]))
    return texts


def character_map(replacements):
    """A map of characters as SentencePiece precompiles it: base64 of u32 bytes, units of Darts-clone, replacements."""
    trie, texts = {}, b""
    for key, value in replacements.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = len(texts)
        texts += value.encode() + b"\0"
    units, used = {}, {0}

    def place(node, at):
        # The children of a node at `at` lie at at ^ offset ^ byte; its value at at ^ offset.
        labels = [max(label, 0) for label in node]
        offset = next(o for o in range(256, 1 << 21, 256) if not any((at ^ o ^ label) in used for label in labels))
        used.update(at ^ offset ^ label for label in labels)
        unit = units.get(at, 0) | offset << 10
        units[at] = unit | (1 << 8 if -1 in node else 0)
        for label, child in node.items():
            if label == -1:
                units[at ^ offset] = 1 << 31 | child
            else:
                units[at ^ offset ^ label] = label
        for label, child in node.items():
            if label != -1:
                place(child, at ^ offset ^ label)

    place(trie, 0)
    array = struct.pack(f"<{max(units) + 1}I", *(units.get(i, 0) for i in range(max(units) + 1)))
    return base64.b64encode(struct.pack("<I", len(array)) + array + texts).decode()


def trained(model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None):
    tokenizer = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder),
                       ("post_processor", post_processor)):
        if part is not None:
            setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bpe_trainer(**options):
    return trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, **options)


def byte_level(pre_tokenizer, normalizer=None, post_processor=None):
    return trained(models.BPE(), bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), normalizer,
                   pre_tokenizer, decoders.ByteLevel(), post_processor)


def changed(tokenizer, change):
    """A copy with another tokenizer.json."""
    document = json.loads(tokenizer.to_str())
    change(document)
    return Tokenizer.from_str(json.dumps(document))


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_byte_tokens(document):
    """<0x00> to <0xFF> behind the vocabulary of BPE or Unigram, and byte_fallback."""
    model = document["model"]
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if model["type"] == "BPE":
        first = max(model["vocab"].values()) + 1
        model["vocab"].update({name: first + i for i, name in enumerate(names)})
    else:
        model["vocab"] += [[name, -30.0] for name in names]
    model["byte_fallback"] = True


def metaspace(scheme, split=True):
    return pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=split)


def llama2(of):
    """Llama 2's way with spaces: normalizers put the marks, and a text is one piece."""
    def change(document):
        with_byte_tokens(document)
        document["pre_tokenizer"] = None
        document["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        document["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return changed(of, change)


def bpe_tokenizers():
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "roberta", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True),
                                post_processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 1)))
    llama3 = byte_level(split_then_bytes(LLAMA3), post_processor=processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="a $A b c", special_tokens=[("a", 1), ("b", 2), ("c", 3)])]))
    yield "llama3", changed(llama3, lambda document: document["model"].update(ignore_merges=True))
    yield "qwen", byte_level(split_then_bytes(QWEN), normalizers.NFC())
    yield "gpt4o", byte_level(split_then_bytes(GPT4O))
    yield "deepseek", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    yield "groups_of_digits", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?=(\d{3})+(?!\d))"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "bytes_in_one_piece", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    yield "bytes_by_normalizer", trained(models.BPE(), bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
                                         normalizers.ByteLevel(), None, decoders.ByteLevel())
    yield "clip", trained(
        models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"),
        bpe_trainer(end_of_word_suffix="</w>", special_tokens=["<unk>"],
                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        decoders.BPEDecoder(suffix="</w>"))
    yield "prefixes", trained(
        models.BPE(continuing_subword_prefix="##", unk_token="<unk>"),
        bpe_trainer(continuing_subword_prefix="##", special_tokens=["<unk>"]), None, pre_tokenizers.Whitespace(),
        decoders.WordPiece(cleanup=False))
    for fuses in (False, True):
        yield f"fuse_unk_{fuses}", trained(
            models.BPE(unk_token="<unk>", fuse_unk=fuses), bpe_trainer(special_tokens=["<unk>"]), None,
            metaspace("never"), decoders.Metaspace(prepend_scheme="never"))
    for scheme in ("always", "first", "never"):
        of = trained(models.BPE(unk_token="<unk>", fuse_unk=True), bpe_trainer(special_tokens=["<unk>"]), None,
                     metaspace(scheme), decoders.Metaspace(prepend_scheme=scheme))
        yield f"metaspace_{scheme}", of
        yield f"metaspace_{scheme}_whole", changed(of, lambda document: document["pre_tokenizer"].update(split=False))
        if scheme == "always":
            yield "llama2", llama2(of)
    yield "no_decoder", trained(models.BPE(unk_token="<unk>"), bpe_trainer(special_tokens=["<unk>"]), None,
                                pre_tokenizers.WhitespaceSplit())


def splitting_tokenizers():
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for inverts in (False, True):
            yield f"split_{behavior}_{inverts}", byte_level(pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(r"\d+|[.,]|\s"), behavior, invert=inverts),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
        yield f"punctuation_{behavior}", byte_level(pre_tokenizers.Sequence([
            pre_tokenizers.Split("e ", behavior), pre_tokenizers.Punctuation(behavior),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    for each in (False, True):
        yield f"digits_{each}", byte_level(pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=each), pre_tokenizers.ByteLevel(add_prefix_space=True)]))
    yield "whitespace", trained(models.BPE(unk_token="<unk>"), bpe_trainer(special_tokens=["<unk>"]),
                                normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
                                pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=True))
    yield "delimiter", trained(models.BPE(unk_token="<unk>"), bpe_trainer(special_tokens=["<unk>"]),
                               normalizers.Sequence([normalizers.NFKD(), normalizers.Nmt(), normalizers.Strip()]),
                               pre_tokenizers.CharDelimiterSplit("e"))


def word_pieces():
    bert = {"special_tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "vocab_size": VOCABULARY, "show_progress": False}
    yield "bert", trained(
        models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(**bert), normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)))
    yield "bert_cased", trained(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20), trainers.WordPieceTrainer(**bert),
        normalizers.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
        decoders.WordPiece(cleanup=False))


def word_levels():
    yield "word_level", trained(
        models.WordLevel(unk_token="[UNK]"),
        trainers.WordLevelTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["[UNK]"]),
        normalizers.Lowercase(), pre_tokenizers.Whitespace())


def unigrams():
    options = {"vocab_size": VOCABULARY, "show_progress": False, "unk_token": "<unk>", "special_tokens": ["<unk>", "</s>"]}
    nfkc = trained(models.Unigram(), trainers.UnigramTrainer(**options), normalizers.NFKC(), metaspace("always"),
                   decoders.Metaspace(), processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)]))
    yield "unigram", nfkc
    yield "unigram_whole", changed(nfkc, lambda document: document["pre_tokenizer"].update(split=False))
    yield "unigram_bytes", changed(nfkc, with_byte_tokens)
    replacements = {"\ufb01": "fi", "\u2460": "1", "\u3000": " ", "\u00ad": "", "e\u0301": "\u00e9", "\uff21": "A",
                    "\u00a0": " ", "\x85": " ", "\u1100\u1161": "\uac00", "a\u0300": "\u00e0", "\u0301": "'", "\t": " "}

    def precompiled(document):
        document["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": character_map(replacements)},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}]}

    yield "unigram_map", changed(nfkc, precompiled)


def add_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False), AddedToken("<|end", normalized=False),
                                  AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<s>", normalized=False)])
    tokenizer.add_tokens([AddedToken("[R]", rstrip=True), AddedToken("wor", single_word=True), AddedToken("Tok")])


def rows_of(tokenizer, texts):
    """The decoded text is left out where an added token was normalized: this version of the library decodes to its
    normalized text, others to the text itself."""
    added = tokenizer.get_added_tokens_decoder()
    changed_ids = {id for id, token in added.items() if tokenizer.id_to_token(id) != token.content}
    for text, encoded in zip(texts, tokenizer.encode_batch(texts)):
        row = {"text": text, "ids": encoded.ids}
        if changed_ids.isdisjoint(encoded.ids):
            row["decoded"] = tokenizer.decode(encoded.ids)
        yield row


def main(folder):
    texts = ["".join(character for character in text if not is_newer(character))
             for text in CORPUS + nasty_texts() + random_texts()]
    for make in (bpe_tokenizers, splitting_tokenizers, word_pieces, word_levels, unigrams):
        for name, tokenizer in make():
            add_tokens(tokenizer)
            (folder / name).mkdir()
            tokenizer.save(str(folder / name / "tokenizer.json"))
            with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows_of(tokenizer, texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
