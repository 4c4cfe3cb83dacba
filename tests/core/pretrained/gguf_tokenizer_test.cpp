#include "core/pretrained/gguf_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "core/text/tokenizer/tokenizer.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A token for each byte, "<end>", "ab", "12", the last two of which are merges.
class Bytes {
 public:
  Bytes() {
    const Json json = test::byte_tokenizer();
    tokens_.resize(256);
    for (const auto& [text, id] : json.at("model").at("vocab").as_object()) {
      tokens_[static_cast<std::size_t>(id.as_integer())] = text;
    }
    tokens_.insert(tokens_.end(), {"<end>", "ab", "12"});
    for (const std::string& token : tokens_) kinds_ += GgufBytes::raw(std::int32_t{token == "<end>" ? 3 : 1});
  }

  GgufBytes file(const std::string& pre) const {
    GgufBytes file;
    file.words("tokenizer.ggml.model", "gpt2")
        .words("tokenizer.ggml.pre", pre)
        .add("tokenizer.ggml.tokens", 9, GgufBytes::texts(tokens_))
        .add("tokenizer.ggml.token_type", 9, GgufBytes::array(5, tokens_.size(), kinds_))
        .add("tokenizer.ggml.merges", 9, GgufBytes::texts({"a b", "1 2"}))
        .count("tokenizer.ggml.bos_token_id", 256)
        .count("tokenizer.ggml.eos_token_id", 256)
        .words("tokenizer.chat_template", "{{ messages }}");
    return file;
  }

 private:
  std::vector<std::string> tokens_;
  std::string kinds_;
};

GgufTokenizer read(const GgufBytes& file) {
  const std::string bytes = file.bytes();
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return tokenizer_of_gguf(parse_gguf(begin, bytes.size(), "f.gguf"), "f.gguf");
}

std::string failure(const GgufBytes& file) {
  try {
    read(file);
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "accepted";
}

tokenizer::Ids encoded(const GgufBytes& file, const std::string& text) {
  const tokenizer::Tokenizer tokenizer(read(file).tokenizer, "f.gguf");
  tokenizer::Ids ids = tokenizer.before();
  tokenizer::Encoder(tokenizer).encode(text, ids);
  return ids;
}

TEST(GgufTokenizer, IsThatOfTransformers) {
  const GgufBytes file = Bytes().file("gpt-2");
  EXPECT_THAT(encoded(file, "abc 12<end>\xC3\xA9"), ElementsAre(257, 'c', ' ', 258, 256, 0xC3, 0xA9));
  const GgufTokenizer made = read(file);
  EXPECT_EQ(
      made.config,
      Json::parse(
          R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<end>", "eos_token": "<end>", "chat_template": "{{ messages }}"})"));
  const tokenizer::Tokenizer tokenizer(made.tokenizer, "f.gguf");
  tokenizer::DecodeStream decoding(tokenizer);
  std::string text;
  for (const tokenizer::Id id : {257, 256, 0xC3, 0xA9}) text += decoding.push(id);
  EXPECT_EQ(text + decoding.finish(), "ab\xC3\xA9");
}

TEST(GgufTokenizer, SplitsWordsAsTheFileSays) {
  EXPECT_THAT(encoded(Bytes().file("smollm"), "ab12"), ElementsAre(257, '1', '2'));
  // The first token of a text, and up to three digits a word.
  EXPECT_THAT(encoded(Bytes().file("llama-bpe"), "ab1212"), ElementsAre(256, 257, 258, '1', '2'));
  EXPECT_THAT(encoded(Bytes().file("qwen2"), "ab12"), ElementsAre(257, '1', '2'));
  GgufBytes told = Bytes().file("llama-bpe");
  EXPECT_THAT(encoded(told.add("tokenizer.ggml.add_bos_token", 7, std::string(1, '\0')), "ab"), ElementsAre(257));
}

/// "<unk>", "<s>", "</s>", a byte, and some pieces.
GgufBytes sentence_pieces(const std::string& kind) {
  const std::vector<std::string> texts = {"<unk>", "<s>", "</s>", "<0x78>", "\u2581", "a", "b", "ab", "\u2581ab"};
  std::string kinds;
  for (const std::int32_t one : {2, 3, 3, 6, 1, 1, 1, 1, 1}) kinds += GgufBytes::raw(one);
  GgufBytes file;
  file.words("tokenizer.ggml.model", kind)
      .add("tokenizer.ggml.tokens", 9, GgufBytes::texts(texts))
      .add("tokenizer.ggml.token_type", 9, GgufBytes::array(5, texts.size(), kinds))
      .add("tokenizer.ggml.scores", 9,
           GgufBytes::array(6, texts.size(), GgufBytes::floats({0, 0, 0, 0, -1, -2, -3, -0.5F, -0.75F})));
  return file;
}

TEST(GgufTokenizer, OfSentencePieceHasItsDefaultsOfLlamaCpp) {
  // A space before each part, <s> before the text, bytes for what has no piece.
  EXPECT_THAT(encoded(sentence_pieces("llama"), "abab<s>abx"), ElementsAre(1, 8, 7, 1, 8, 3));
  GgufBytes plain = sentence_pieces("llama");
  plain.add("tokenizer.ggml.add_space_prefix", 7, std::string(1, '\0'))
      .add("tokenizer.ggml.add_bos_token", 7, std::string(1, '\0'));
  EXPECT_THAT(encoded(plain, "ab ab"), ElementsAre(7, 8));
  GgufBytes unigram = sentence_pieces("t5");
  unigram.count("tokenizer.ggml.unknown_token_id", 0)
      .add("tokenizer.ggml.add_space_prefix", 7, "\1")
      .add("tokenizer.ggml.remove_extra_whitespaces", 7, "\1");
  EXPECT_THAT(encoded(unigram, "  ab   ab "), ElementsAre(8, 8));
}

TEST(GgufTokenizer, OfWordPieceFindsPartsOfWords) {
  const std::vector<std::string> texts = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581ab", "c", "\u2581."};
  std::string kinds;
  for (const std::int32_t one : {3, 3, 3, 3, 1, 1, 1}) kinds += GgufBytes::raw(one);
  GgufBytes file;
  file.words("tokenizer.ggml.model", "bert")
      .add("tokenizer.ggml.tokens", 9, GgufBytes::texts(texts))
      .add("tokenizer.ggml.token_type", 9, GgufBytes::array(5, texts.size(), kinds))
      .count("tokenizer.ggml.unknown_token_id", 1)
      .count("tokenizer.ggml.bos_token_id", 2)
      .count("tokenizer.ggml.seperator_token_id", 3);
  const tokenizer::Tokenizer tokenizer(read(file).tokenizer, "f.gguf");
  tokenizer::Ids ids = tokenizer.before();
  tokenizer::Encoder(tokenizer).encode("ABcc. d", ids);
  EXPECT_THAT(ids, ElementsAre(2, 4, 5, 5, 6, 1));
  EXPECT_THAT(tokenizer.after(), ElementsAre(3));
}

TEST(GgufTokenizer, NamesWhatIsWrong) {
  EXPECT_EQ(failure(GgufBytes()), "f.gguf: it has no tokenizer. Name a folder with tokenizer.json.");
  EXPECT_THAT(
      failure(GgufBytes().words("tokenizer.ggml.model", "rwkv")),
      HasSubstr("f.gguf: its tokenizer is of the kind 'rwkv' (tokenizer.ggml.model); of GGUF files 'gpt2', which is "
                "byte-level BPE, 'llama', 't5' and 'bert' are read."));
  EXPECT_THAT(failure(Bytes().file("kimi-k2")),
              HasSubstr("splits words as 'kimi-k2' (tokenizer.ggml.pre), and known are a.x-4.0, bloom, "));
  EXPECT_THAT(failure(sentence_pieces("llama").count("tokenizer.ggml.bos_token_id", 9)),
              HasSubstr("tokenizer.ggml.bos_token_id must be the number of a token, below 9."));
  const auto with_tokens = [](const char* kind, const std::vector<std::string>& texts) {
    return GgufBytes().words("tokenizer.ggml.model", kind).add("tokenizer.ggml.tokens", 9, GgufBytes::texts(texts));
  };
  EXPECT_THAT(failure(with_tokens("t5", {})), HasSubstr("tokenizer.ggml.tokens is empty."));
  EXPECT_THAT(failure(with_tokens("t5", {"a", "\xC3"})), HasSubstr("tokenizer.ggml.tokens[1] is not UTF-8."));
  EXPECT_THAT(failure(with_tokens("bert", {"a"})),
              HasSubstr("it has no tokenizer.ggml.unknown_token_id, which its tokenizer needs."));
  EXPECT_THAT(failure(sentence_pieces("t5").count("tokenizer.ggml.precompiled_charsmap", 9)),
              HasSubstr("tokenizer.ggml.precompiled_charsmap must be an array of bytes."));
  EXPECT_THAT(failure(GgufBytes()
                          .words("tokenizer.ggml.model", "llama")
                          .add("tokenizer.ggml.tokens", 9, GgufBytes::texts({"a"}))
                          .add("tokenizer.ggml.scores", 9, GgufBytes::array(6, 0, ""))),
              HasSubstr("tokenizer.ggml.scores has 0 numbers, and there are 1 tokens."));
  EXPECT_THAT(failure(GgufBytes().words("tokenizer.ggml.model", "gpt2")),
              HasSubstr("it has no tokenizer.ggml.tokens, which its tokenizer needs."));
  EXPECT_THAT(failure(GgufBytes().words("tokenizer.ggml.model", "gpt2").count("tokenizer.ggml.tokens", 3)),
              HasSubstr("tokenizer.ggml.tokens must be an array of texts."));
  EXPECT_THAT(failure(Bytes().file("gpt-2").count("tokenizer.ggml.padding_token_id", 259)),
              HasSubstr("tokenizer.ggml.padding_token_id must be the number of a token, below 259."));
  EXPECT_THAT(failure(GgufBytes()
                          .words("tokenizer.ggml.model", "gpt2")
                          .add("tokenizer.ggml.tokens", 9, GgufBytes::texts({"a"}))
                          .add("tokenizer.ggml.token_type", 9, GgufBytes::array(5, 0, ""))),
              HasSubstr("tokenizer.ggml.token_type has 0 numbers, and there are 1 tokens."));
}

}  // namespace
}  // namespace capstan
