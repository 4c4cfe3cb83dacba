"""Vocabularies in GGUF files with the tokens that llama.cpp gives: gguf_vocabularies.py FOLDER

FOLDER/NAME.gguf is a model of one small layer, because llama.cpp opens whole models, with SentencePiece's BPE (llama), a
unigram model (t5) or WordPiece (bert); FOLDER/NAME.jsonl has lines {"text": ..., "ids": [...]}.
"""
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "core/text"), str(TESTS / "cli")]
from llama_cpp import LlamaCpp  # noqa: E402
from tokenizer_cases import CORPUS, is_newer, nasty_texts, random_texts, word_pieces  # noqa: E402
from vocabulary_files import LLAMA, trained  # noqa: E402

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def write(file, put_tokens):
    writer = GGUFWriter(file, "llama")
    size = put_tokens(writer)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(size)
    square, vector = np.zeros((32, 32), np.float32), np.ones(32, np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((size, 32), np.float32))
    writer.add_tensor("output_norm.weight", vector)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", vector)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces(model, kind, **flags):
    """Puts the pieces of a SentencePieceProcessor."""

    def kind_of(i):
        tests = ((model.is_unknown, UNKNOWN), (model.is_control, CONTROL), (model.is_byte, BYTE))
        return next((number for test, number in tests if test(i)), USER_DEFINED if model.id_to_piece(i) == "[R]" else NORMAL)

    def put(writer):
        size = model.get_piece_size()
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre("default")
        writer.add_token_list([model.id_to_piece(i) for i in range(size)])
        writer.add_token_scores([model.get_score(i) for i in range(size)])
        writer.add_token_types([kind_of(i) for i in range(size)])
        writer.add_unk_token_id(model.unk_id())
        for key, value in flags.items():
            getattr(writer, f"add_{key}")(value)
        return size

    return put


def character_map(folder):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((folder / "tokenizer.model").read_bytes())
    return proto.normalizer_spec.precompiled_charsmap


def bert(writer):
    tokenizer = next(word_pieces())[1]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token if token in special else token[2:] if token.startswith("##") else "\u2581" + token
                           for token in tokens])
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)
    return len(tokens)


def main(folder):
    texts = ["".join(character for character in text if not is_newer(character))
             for text in CORPUS[:4] + nasty_texts() + random_texts()]
    spm = trained(folder / "spm", None, user_defined_symbols=["[R]"], **LLAMA)
    unigram = trained(folder / "unigram", None, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder / "llama.gguf", pieces(spm, "llama", bos_token_id=1, eos_token_id=2, add_bos_token=True))
    write(folder / "llama_without_prefix.gguf", pieces(spm, "llama", add_space_prefix=False, add_eos_token=True))
    write(folder / "t5.gguf", pieces(unigram, "t5", eos_token_id=1, pad_token_id=0, add_space_prefix=True,
                                     remove_extra_whitespaces=True, precompiled_charsmap=character_map(folder / "unigram")))
    write(folder / "bert.gguf", bert)
    for name in ("llama", "llama_without_prefix", "t5", "bert"):
        llama_cpp = LlamaCpp(folder / f"{name}.gguf")
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as lines:
            # The text of NUL ends the library's own.
            for text in (text for text in texts if "\0" not in text):
                lines.write(json.dumps({"text": text, "ids": llama_cpp.tokenize(text)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
