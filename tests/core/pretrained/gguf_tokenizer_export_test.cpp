#include "core/pretrained/gguf_tokenizer_export.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "core/pretrained/gguf_tokenizer.hpp"
#include "core/text/sentence_pieces.hpp"
#include "core/text/tokenizer/tokenizer.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocabulary = 260;

/// A byte tokenizer with "ab", which splits as Llama 3 does.
Json byte_level() {
  Json json = test::byte_tokenizer();
  json["model"]["vocab"]["ab"] = 257;
  json["model"]["merges"] = Json::parse(R"([["a", "b"]])");
  json["model"]["ignore_merges"] = true;
  json["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  json["pre_tokenizer"]["pretokenizers"].as_array()[0]["pattern"]["Regex"] =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  json["post_processor"] = tokens_around(256, "<end>", -1, "");
  return json;
}

/// What a GGUF file with these metadata is read as.
GgufTokenizer read_back(const GgufTokenizerMetadata& metadata) {
  GgufBytes file;
  for (const auto& [key, value] : metadata.facts.as_object()) {
    if (value.is_bool()) {
      file.add(key, 7, std::string(1, value.as_bool() ? '\1' : '\0'));
    } else if (value.is_integer()) {
      file.count(key, static_cast<std::uint32_t>(value.as_integer()));
    } else {
      file.words(key, value.as_string());
    }
  }
  for (const GgufEntry& entry : metadata.arrays.all()) file.add(entry.key, 9, std::string(entry.value));
  const std::string bytes = file.bytes();
  return tokenizer_of_gguf(parse_gguf(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "f"), "f");
}

tokenizer::Ids ids_of(const Json& json, const std::string& text) {
  const tokenizer::Tokenizer tokenizer(json, "f");
  tokenizer::Ids ids = tokenizer.before();
  tokenizer::Encoder(tokenizer).encode(text, ids);
  return ids;
}

std::string refusal(const Json& tokenizer, std::int64_t vocabulary = kVocabulary) {
  try {
    gguf_tokenizer_metadata(tokenizer, Json::object(), {}, vocabulary);
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(GgufTokenizerExport, OfByteLevelBpeGivesTheSameTokens) {
  const Json config = Json::parse(R"({"eos_token": {"content": "<end>"}, "pad_token": "<none>"})");
  const GgufTokenizerMetadata metadata = gguf_tokenizer_metadata(byte_level(), config, "{{ messages }}", kVocabulary);
  EXPECT_EQ(metadata.facts.at("tokenizer.ggml.pre"), Json("llama-bpe"));
  EXPECT_EQ(metadata.facts.at("tokenizer.ggml.add_bos_token"), Json(true));
  EXPECT_EQ(metadata.facts.at("tokenizer.ggml.eos_token_id"), Json(256));
  EXPECT_EQ(metadata.facts.find("tokenizer.ggml.padding_token_id"), nullptr);
  EXPECT_TRUE(metadata.notes.empty());
  const GgufTokenizer back = read_back(metadata);
  EXPECT_EQ(back.config.at("chat_template"), Json("{{ messages }}"));
  EXPECT_THAT(ids_of(back.tokenizer, "ab 1<end>"), ElementsAre(256, 257, ' ', '1', 256));
  // Ids without a token stay without.
  EXPECT_EQ(tokenizer::Tokenizer(back.tokenizer, "f").text(258), nullptr);
}

TEST(GgufTokenizerExport, NamesThePatternByTheTable) {
  const auto name_of = [](const Json& json) {
    return gguf_tokenizer_metadata(json, {}, {}, kVocabulary).facts.at("tokenizer.ggml.pre").as_string();
  };
  Json json = byte_level();
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(name_of(json), "smaug-bpe");  // the pattern without its way with whole words
  json["pre_tokenizer"] = Json::parse(R"({"type": "ByteLevel", "add_prefix_space": false})");
  EXPECT_EQ(name_of(json), "gpt-2");
  json["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]})");
  EXPECT_EQ(name_of(json), "smollm");
  json["normalizer"] = Json::parse(R"({"type": "NFC"})");
  EXPECT_THAT(gguf_tokenizer_metadata(json, {}, {}, kVocabulary).notes,
              ElementsAre(HasSubstr("llama.cpp does not compose characters (NFC)")));
}

TEST(GgufTokenizerExport, OfSentencePieceKeepsTheOrderOfMerges) {
  SentencePieces pieces;
  using Kind = SentencePieces::Kind;
  pieces.pieces = {{"<unk>", 0, Kind::kUnknown},
                   {"<s>", 0, Kind::kControl},
                   {"a", -9},
                   {"b", -8},
                   {"c", -7},
                   {"bc", -2},
                   {"ab", -1},
                   {"abc", -3},
                   {"\u2581", -4}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    pieces.pieces.push_back({name, 0, Kind::kByte});
  }
  pieces.has_bytes = true;
  pieces.unknown = 0;
  pieces.prefix = SentencePieces::Prefix::kNone;
  const Json json = tokenizer_of_pieces(pieces);
  const GgufTokenizerMetadata metadata = gguf_tokenizer_metadata(json, {}, {}, 300);
  EXPECT_EQ(metadata.facts.at("tokenizer.ggml.model"), Json("llama"));
  EXPECT_EQ(metadata.facts.at("tokenizer.ggml.add_space_prefix"), Json(false));
  const GgufTokenizer back = read_back(metadata);
  // "ab" is merged before "bc", and "abc" of "ab" and "c".
  for (const char* text : {"abbc", "abc", "bcab", "a bc", "x<s>a"}) {
    EXPECT_EQ(ids_of(back.tokenizer, text), ids_of(json, text)) << text;
  }
  Json torn = json;
  std::swap(torn["model"]["merges"].as_array()[0], torn["model"]["merges"].as_array()[3]);
  EXPECT_THAT(refusal(torn, 300), HasSubstr("the merges into 'abc' do not follow each other"));
  Json fewer = json;
  fewer["model"]["merges"].as_array().pop_back();
  EXPECT_THAT(refusal(fewer, 300),
              HasSubstr("'abc' is put together in 1 ways by its merges, and llama.cpp would in 2."));
}

TEST(GgufTokenizerExport, RefusesWhatLlamaCppHasNoEqualOf) {
  const auto with = [](const char* section, const char* value) {
    Json json = byte_level();
    json[section] = Json::parse(value);
    return refusal(json);
  };
  EXPECT_THAT(with("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})"),
              HasSubstr("llama.cpp has no name for its patterns: \\d, with ignore_merges."));
  EXPECT_THAT(with("pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": true})"),
              HasSubstr("ByteLevel puts a space before a text (add_prefix_space)"));
  EXPECT_THAT(with("normalizer", R"({"type": "Lowercase"})"),
              HasSubstr("llama.cpp has no equal of its normalizer, Lowercase."));
  EXPECT_THAT(with("pre_tokenizer", R"({"type": "Metaspace"})"),
              HasSubstr("it has no tokens for bytes (byte_fallback)"));
  EXPECT_THAT(with("model", R"({"type": "Unigram", "vocab": [["a", 0]]})"),
              HasSubstr("its tokenizer is of the type Unigram, and a GGUF file that is written here holds BPE."));
  EXPECT_THAT(with("model", R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]})"),
              HasSubstr("tokenizer.json: model.merges[0]: must be two tokens"));
  EXPECT_THAT(refusal(byte_level(), 257),
              HasSubstr("the token 'ab' has the id 257, and the model's vocab_size is 257."));
}

}  // namespace
}  // namespace capstan
