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

TEST(GgufTokenizer, NamesWhatIsWrong) {
  EXPECT_EQ(failure(GgufBytes()), "f.gguf: it has no tokenizer. Name a folder with tokenizer.json.");
  EXPECT_THAT(
      failure(GgufBytes().words("tokenizer.ggml.model", "llama")),
      HasSubstr("f.gguf: its tokenizer is of the kind 'llama' (tokenizer.ggml.model); of GGUF files 'gpt2' is"));
  EXPECT_THAT(
      failure(Bytes().file("tekken")),
      HasSubstr("splits words as 'tekken' (tokenizer.ggml.pre), and known are gpt-2, smollm, llama-bpe, qwen2."));
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
