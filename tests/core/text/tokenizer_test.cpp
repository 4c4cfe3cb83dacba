#include "core/text/tokenizer/tokenizer.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/text/tokenizer/document_encoder.hpp"
#include "core/text/tokenizer/unicode.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::tokenizer {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A text with its tokens and what they decode to, by the tokenizers library.
struct Case {
  std::string text;
  Ids ids;
  std::optional<std::string> decoded;
};

std::vector<Case> read_cases(const fs::path& file) {
  std::vector<Case> cases;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    Case one{.text = row.at("text").as_string(), .ids = {}, .decoded = {}};
    for (const Json& id : row.at("ids").as_array()) one.ids.push_back(static_cast<Id>(id.as_integer()));
    if (const Json* decoded = row.find("decoded")) one.decoded = decoded->as_string();
    cases.push_back(std::move(one));
  }
  return cases;
}

Ids encode_with_special(const Tokenizer& tokenizer, Encoder& encoder, const std::string& text) {
  Ids ids = tokenizer.before();
  encoder.encode(text, ids);
  ids.insert(ids.end(), tokenizer.after().begin(), tokenizer.after().end());
  return ids;
}

/// The decoded text, of which every piece must be whole characters.
std::string decode_in_pieces(const Tokenizer& tokenizer, const Ids& ids) {
  DecodeStream stream(tokenizer);
  std::string text;
  const auto add = [&](const std::string& piece) {
    EXPECT_FALSE(first_invalid_byte(piece)) << piece;
    text += piece;
  };
  for (const Id id : ids) add(stream.push(id));
  add(stream.finish());
  return text;
}

/// Tokenizers that the tokenizers library makes, once for all tests.
class TokenizersLibrary : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string python = test::reader_python();
    if (python.empty()) return;
    folder_ = std::make_unique<TemporaryFolder>();
    const ProcessResult made =
        run_process({python, CAPSTAN_TEST_SOURCE_DIR "/tests/core/text/tokenizer_cases.py", folder_->path().string()},
                    {.environment = {"TOKENIZERS_PARALLELISM=false"}});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    for (const auto& entry : fs::directory_iterator(folder_->path())) {
      if (entry.is_directory()) cases_[entry.path()] = read_cases(entry.path().string() + ".jsonl");
    }
  }
  static void TearDownTestSuite() {
    cases_.clear();
    folder_.reset();
  }
  void SetUp() override {
    if (!folder_) GTEST_SKIP() << test::kNoReaders;
    ASSERT_GE(cases_.size(), 45);
  }

  static inline std::unique_ptr<TemporaryFolder> folder_;
  static inline std::map<fs::path, std::vector<Case>> cases_;
};

/// Folders without tokenizer.json, with the tokens of transformers, sentencepiece and tiktoken.
TEST(VocabularyFiles, GiveTheTokensOfTheirOwnLibraries) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const TemporaryFolder folder;
  const ProcessResult made = run_process(
      {python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/core/text/vocabulary_files.py", folder.path().string()},
      {.environment = {"TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=1"}});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (!entry.is_directory()) continue;
    const Tokenizer tokenizer(entry.path());
    Encoder encoder(tokenizer);
    const std::vector<Case> cases = read_cases(entry.path().string() + ".jsonl");
    ASSERT_GT(cases.size(), 300) << entry.path();
    for (const Case& one : cases) {
      EXPECT_EQ(encode_with_special(tokenizer, encoder, one.text), one.ids)
          << entry.path() << ": " << Json(one.text).dump();
      if (one.decoded) EXPECT_EQ(decode_in_pieces(tokenizer, one.ids), *one.decoded) << entry.path();
    }
    ++folders;
  }
  EXPECT_EQ(folders, 12);
}

TEST_F(TokenizersLibrary, GivesTheSameIdsForEveryText) {
  for (const auto& [folder, cases] : cases_) {
    const Tokenizer tokenizer(folder);
    Encoder encoder(tokenizer);
    ASSERT_GT(cases.size(), 450) << folder;
    for (const Case& one : cases) {
      EXPECT_EQ(encode_with_special(tokenizer, encoder, one.text), one.ids) << folder << ": " << Json(one.text).dump();
    }
  }
}

TEST_F(TokenizersLibrary, DecodesToTheSameTextAndWeInWholeCharacters) {
  for (const auto& [folder, cases] : cases_) {
    const Tokenizer tokenizer(folder);
    for (const Case& one : cases) {
      const std::string text = decode_in_pieces(tokenizer, one.ids);
      if (!one.decoded) continue;
      EXPECT_EQ(text, *one.decoded) << folder << ": " << Json(one.text).dump();
    }
  }
}

TEST_F(TokenizersLibrary, GivesTheIdsOfALongDocumentThatWeTokenizeInWindows) {
  for (const auto& [folder, cases] : cases_) {
    const Tokenizer tokenizer(folder);
    std::string document;
    for (std::size_t i = 0; i < 8; ++i) document += cases[i].text;
    Ids whole, in_windows;
    Encoder(tokenizer).encode(document, whole);
    int parts = 0;
    const auto take = [&](std::span<const Id> ids) {
      in_windows.insert(in_windows.end(), ids.begin(), ids.end());
      ++parts;
    };
    DocumentEncoder encoder(tokenizer, take, {.window = 3000, .context = 300});
    for (std::size_t at = 0, end = 0; at < document.size(); at = end) {
      end = std::min(at + 700, document.size());
      while (end < document.size() && (static_cast<unsigned char>(document[end]) & 0xC0) == 0x80) ++end;
      encoder.append(std::string_view(document).substr(at, end - at));
    }
    encoder.finish();
    EXPECT_EQ(in_windows, whole) << folder;
    // A normalizer that strips, and one piece of letters alone, leave few places for a cut.
    EXPECT_GT(parts, 20) << folder;
  }
}

/// Writes tokenizer.json from its parts, which replace those of a tokenizer of bytes.
class TokenizerFile : public ::testing::Test {
 protected:
  fs::path written() const {
    write_bytes(folder_ / "tokenizer.json", json_.dump());
    return folder_.path();
  }
  Ids ids_of(const std::string& text) const {
    const Tokenizer tokenizer(written());
    Ids ids;
    Encoder(tokenizer).encode(text, ids);
    return ids;
  }
  /// The error that reading the file ends with, without its folder.
  std::string error() const {
    const std::string folder = written().string();
    try {
      Tokenizer tokenizer{fs::path(folder)};
    } catch (const RuntimeFault& fault) {
      const std::string text = fault.what();
      EXPECT_TRUE(text.starts_with(folder + "/tokenizer.json: ")) << text;
      return text.substr(std::min(text.size(), folder.size() + 17));
    }
    return "no error";
  }
  std::string error_with(const std::string& member, const std::string& value) {
    Json& place = json_[member];
    const Json kept = std::exchange(place, Json::parse(value));
    const std::string text = error();
    json_[member] = kept;
    return text;
  }

  TemporaryFolder folder_;
  Json json_ = test::byte_tokenizer();
};

TEST_F(TokenizerFile, GivesEachByteAnIdAndFindsAddedTokens) {
  EXPECT_THAT(ids_of("A\n\xE2\x82\xAC<end>"), ElementsAre('A', '\n', 0xE2, 0x82, 0xAC, 256));
  EXPECT_THAT(ids_of(std::string("\0 ", 2)), ElementsAre(0, ' '));
  EXPECT_TRUE(ids_of("").empty());
}

TEST_F(TokenizerFile, HoldsBackACharacterUntilItIsWhole) {
  const Tokenizer tokenizer(written());
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.push('A'), "A");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xAC), "\u20AC");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push('B'), "\uFFFDB");  // a character that was broken off
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(256), "");    // a special token
  EXPECT_EQ(stream.push(70000), "");  // no token
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push('C'), "C");
}

TEST_F(TokenizerFile, MergesAsTheDefinitionOfBpeDoes) {
  // Merges of three letters, at random; their ranks are their places.
  std::mt19937 random(5);
  std::vector<std::string> texts = {"a", "b", "c"};
  std::vector<std::pair<std::string, std::string>> merges;
  while (merges.size() < 60) {
    const std::string& left = texts[random() % texts.size()];
    const std::string& right = texts[random() % texts.size()];
    if (left.size() + right.size() > 6 || json_["model"]["vocab"].find(left + right)) continue;
    merges.emplace_back(left, right);
    json_["model"]["vocab"][left + right] = static_cast<std::int64_t>(256 + merges.size());
    json_["model"]["merges"].push_back(Json(Json::Array{Json(left), Json(right)}));
    texts.push_back(left + right);
  }
  const Tokenizer tokenizer(written());
  Encoder encoder(tokenizer);
  // 47, 48 and more symbols are merged in different ways.
  for (const std::size_t size : {1u, 2u, 5u, 20u, 47u, 48u, 300u}) {
    for (int time = 0; time < 40; ++time) {
      std::string word;
      while (word.size() < size) word += static_cast<char>('a' + random() % 3);
      std::vector<std::string> symbols;
      for (const char letter : word) symbols.emplace_back(1, letter);
      for (bool merged = true; merged;) {
        merged = false;
        for (const auto& [left, right] : merges) {  // the least rank first, the leftmost of its pairs
          const auto pair = std::adjacent_find(symbols.begin(), symbols.end(), [&](const auto& one, const auto& next) {
            return one == left && next == right;
          });
          if (pair == symbols.end()) continue;
          *pair += *(pair + 1);
          symbols.erase(pair + 1);
          merged = true;
          break;
        }
      }
      Ids ids;
      encoder.encode(word, ids);
      std::vector<std::string> found;
      for (const Id id : ids) found.push_back(*tokenizer.text(id));
      ASSERT_EQ(found, symbols) << word;
    }
  }
}

/// The greatest sum of scores over all ways to cut a text.
double best_sum(const std::map<std::string, double>& scores, const std::string& text) {
  if (text.empty()) return 0;
  double best = -std::numeric_limits<double>::infinity();
  for (std::size_t size = 1; size <= text.size(); ++size) {
    const auto found = scores.find(text.substr(0, size));
    if (found != scores.end()) best = std::max(best, found->second + best_sum(scores, text.substr(size)));
  }
  return best;
}

TEST_F(TokenizerFile, FindsTheGreatestSumOfScoresAmongAllCuts) {
  std::mt19937 random(3);
  std::map<std::string, double> scores = {{"a", -5}, {"b", -6}, {"c", -7}};
  while (scores.size() < 30) {
    std::string token;
    for (std::size_t size = 2 + random() % 3; token.size() < size;) token += static_cast<char>('a' + random() % 3);
    scores.emplace(token, -1.0 - static_cast<double>(random() % 1000) / 100);
  }
  json_["model"] = Json::parse(R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]]})");
  json_["added_tokens"] = Json::array();
  json_["pre_tokenizer"] = Json();
  for (const auto& [token, score] : scores) {
    json_["model"]["vocab"].push_back(Json(Json::Array{Json(token), Json(score)}));
  }
  const Tokenizer tokenizer(written());
  Encoder encoder(tokenizer);
  for (int time = 0; time < 200; ++time) {
    std::string text;
    for (std::size_t size = 1 + random() % 12; text.size() < size;) text += static_cast<char>('a' + random() % 3);
    Ids ids;
    encoder.encode(text, ids);
    double sum = 0;
    std::string joined;
    for (const Id id : ids) {
      joined += *tokenizer.text(id);
      sum += scores.at(*tokenizer.text(id));
    }
    ASSERT_EQ(joined, text);
    ASSERT_NEAR(sum, best_sum(scores, text), 1e-9) << text;
  }
  Ids unknown;
  encoder.encode("xyz", unknown);
  EXPECT_THAT(unknown, ElementsAre(0));
}

TEST_F(TokenizerFile, NamesWhatIsNotSupportedAndItsPlace) {
  EXPECT_EQ(error(), "no error");
  EXPECT_EQ(error_with("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"},
                                          {"type": "UnicodeScripts"}]})"),
            "pre_tokenizer.pretokenizers[1].type: 'UnicodeScripts' is not a pre-tokenizer that Capstan supports: "
            "Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, "
            "BertPreTokenizer, CharDelimiterSplit.");
  EXPECT_THAT(error_with("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Odd"}]})"),
              HasSubstr("normalizer.normalizers[0].type: 'Odd' is not a normalizer that Capstan supports: Sequence,"));
  EXPECT_THAT(error_with("decoder", R"({"type": "CTC"})"),
              HasSubstr("decoder.type: 'CTC' is not a decoder that Capstan supports: Sequence,"));
  EXPECT_THAT(error_with("post_processor", R"({"type": "Odd"})"),
              HasSubstr("post_processor.type: 'Odd' is not a post-processor that Capstan supports: Template"));
  EXPECT_EQ(error_with("model", R"({"type": "WordSplit", "vocab": {}})"),
            "model.type: 'WordSplit' is not a model that Capstan supports: BPE, Unigram, WordPiece, WordLevel.");
  json_["model"]["dropout"] = 0.1;
  EXPECT_EQ(error(), "model.dropout: leaves out merges at random, which Capstan does not support. Set it to null.");
}

TEST_F(TokenizerFile, NamesThePlaceOfWhatIsWrong) {
  const std::string split = R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": )";
  EXPECT_EQ(error_with("pre_tokenizer", split + R"({"Regex": "(a"}})"),
            "pre_tokenizer.pattern.Regex: the pattern '(a' is not a regular expression: missing closing parenthesis, "
            "at byte 2 of '(a'.");
  EXPECT_EQ(error_with("pre_tokenizer", split + R"({"Regex": "[a&&b]"}})"),
            "pre_tokenizer.pattern.Regex: the pattern '[a&&b]' has '&&' within a class, which Capstan does not "
            "support.");
  EXPECT_EQ(error_with("pre_tokenizer", split + R"({"String": ""}})"),
            "pre_tokenizer.pattern.String: must not be empty.");
  EXPECT_EQ(error_with("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})"),
            "pre_tokenizer.behavior: 'Odd' is not a behavior: Removed, Isolated, MergedWithPrevious, MergedWithNext, "
            "Contiguous.");
  EXPECT_EQ(error_with("pre_tokenizer", "[]"), "pre_tokenizer: must be of type object, and is of type array.");
  EXPECT_EQ(error_with("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})"),
            "normalizer.precompiled_charsmap: must be base64 of a trie and its replacements, and is damaged.");
  EXPECT_EQ(error_with("added_tokens", R"([{"id": 256, "content": "a"}])"),
            "added_tokens[0].id: 'a' has id 256, and model.vocab has it as 97.");
  EXPECT_EQ(error_with("added_tokens", R"([{"id": 97, "content": "x"}])"),
            "added_tokens[0].id: 'x' has id 97, which model.vocab has for 'a'.");
  EXPECT_EQ(error_with("added_tokens", R"([{"id": 300, "content": "<x>"}, {"id": 300, "content": "<y>"}])"),
            "added_tokens[1].id: id 300 stands for '<x>' and for '<y>'.");
  EXPECT_EQ(error_with("added_tokens", R"([{"id": 2000000000, "content": "x"}])"),
            "added_tokens[0].id: the id of a token must be between 0 and 9999999, and is 2000000000.");
  json_["model"]["merges"].push_back(Json("a"));
  EXPECT_EQ(error(), "model.merges[0]: must be two tokens, as [\"a\", \"b\"] or \"a b\".");
  json_["model"]["merges"] = Json(Json::Array{Json("a b")});
  EXPECT_EQ(error(), "model.merges[0]: 'ab' is not in model.vocab.");
  json_["model"]["merges"] = Json::array();
  json_["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(error(), "model.unk_token: '<unk>' is not in model.vocab.");
  json_["model"]["unk_token"] = Json();
  json_["model"]["vocab"]["second"] = 97;
  EXPECT_EQ(error(), "model.vocab: id 97 stands for 'a' and for 'second'.");
  json_["model"]["vocab"]["second"] = -1;
  EXPECT_EQ(error(), "model.vocab.second: the id of a token must be between 0 and 9999999, and is -1.");
  json_["model"].erase("vocab");
  EXPECT_EQ(error(), "model: has no member 'vocab'.");
  json_.erase("model");
  EXPECT_EQ(error(), "has no member 'model'.");
}

TEST_F(TokenizerFile, NamesAFileThatIsNotThereOrNoJson) {
  const auto fault = [](const fs::path& path) {
    try {
      Tokenizer tokenizer(path);
    } catch (const RuntimeFault& thrown) {
      return std::string(thrown.what());
    }
    return std::string("no error");
  };
  const std::string folder = folder_.path().string();
  EXPECT_EQ(fault(folder), folder + ": has no tokenizer.json, tokenizer.model or *.tiktoken.");
  write_bytes(folder_ / "vocab.txt", "a\n");
  EXPECT_THAT(fault(folder),
              HasSubstr(folder + ": has vocab.txt and not tokenizer.json. Have transformers write it: "));
  EXPECT_EQ(fault(folder + "/none.json"), folder + "/none.json: cannot be read as the file of a tokenizer.");
  write_bytes(folder_ / "tokenizer.json", "{\n  \"model\": ");
  EXPECT_THAT(fault(folder), HasSubstr(folder + "/tokenizer.json: JSON, line 2, column "));
}

/// Fields of a message of protobuf, written as its page on encoding has them.
std::string field(int number, std::string_view bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (std::size_t size = bytes.size();; size >>= 7) {
    out += static_cast<char>((size & 127) | (size > 127 ? 128 : 0));
    if (size <= 127) break;
  }
  return out.append(bytes);
}
std::string field(int number, int value) {
  std::string out;
  for (const int part : {number << 3, value}) {
    if (part > 127) out += static_cast<char>((part & 127) | 128);
    out += static_cast<char>(part > 127 ? part >> 7 : part);
  }
  return out;
}
std::string piece(std::string_view text, float score, int kind = 1) {
  std::string number(sizeof score, '\0');
  std::memcpy(number.data(), &score, sizeof score);
  return field(1, field(1, text) + '\x15' + number + field(3, kind));
}

/// A model of SentencePiece: <unk>, <s>, </s>, and some pieces of "▁abc".
std::string sentence_pieces(int model_type, const std::string& more_of_trainer = "") {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("\u2581", -1) + piece("a", -2) +
         piece("b", -3) + piece("ab", -0.5F) + piece("\u2581ab", -0.75F) + piece("c", -4) +
         field(2, field(3, model_type) + more_of_trainer) + field(3, field(4, 0));
}

class OtherFiles : public ::testing::Test {
 protected:
  Ids encoded(const std::string& text) const {
    const Tokenizer tokenizer(folder_.path());
    Encoder encoder(tokenizer);
    return encode_with_special(tokenizer, encoder, text);
  }
  /// The message behind the folder's name, about the one file of tokens with that content.
  std::string fault(const std::string& name, const std::string& content) const {
    write_bytes(folder_ / name, content);
    std::string message = "no error";
    try {
      Tokenizer tokenizer(folder_.path());
    } catch (const RuntimeFault& thrown) {
      message = thrown.what();
    }
    fs::remove(folder_ / name);
    const std::string begin = folder_.path().string() + "/";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  }

  TemporaryFolder folder_;
};

TEST_F(OtherFiles, OfSentencePieceMergeByScoresAndStandAsTheirClassSays) {
  write_bytes(folder_ / "tokenizer.model", sentence_pieces(2));
  EXPECT_THAT(encoded("ab c"), ElementsAre(7, 3, 8));  // "▁ab", "▁", "c"
  EXPECT_THAT(encoded("abab"), ElementsAre(7, 6));     // "ab" before "▁ab"
  EXPECT_THAT(encoded("axb"), ElementsAre(3, 4, 0, 5));
  write_bytes(folder_ / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "add_eos_token": true,
    "added_tokens_decoder": {"9": {"content": "<|x|>", "special": true}, "8": {"content": "<c>", "special": false}}})");
  EXPECT_THAT(encoded("ab<|x|>ab<c>"), ElementsAre(1, 7, 9, 6, 8, 2));
  write_bytes(folder_ / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})");
  EXPECT_THAT(encoded("ab<s>ab"), ElementsAre(1, 7, 1, 7));
  fs::remove(folder_ / "tokenizer_config.json");
  write_bytes(folder_ / "config.json", R"({"model_type": "gemma2"})");
  EXPECT_THAT(encoded("ab"), ElementsAre(1, 7));
}

TEST_F(OtherFiles, OfUnigramsTakeTheGreatestSum) {
  write_bytes(folder_ / "spiece.model", sentence_pieces(1));
  // "▁ab" has -0.75; "▁" and "ab" together have -1.5.
  EXPECT_THAT(encoded("ab ab"), ElementsAre(7, 7));
  EXPECT_THAT(encoded("aab"), ElementsAre(3, 4, 6));
}

TEST_F(OtherFiles, OfSentencePieceAreNamedWithWhatIsWrong) {
  const auto wrong = [&](const std::string& content) { return fault("tokenizer.model", content); };
  EXPECT_THAT(wrong("x"), HasSubstr("tokenizer.model: it is cut off or damaged, or not a model of SentencePiece: "));
  EXPECT_EQ(wrong(""), "tokenizer.model: it has no pieces, so it is not a model of SentencePiece.");
  const std::string whole = sentence_pieces(2);
  for (std::size_t size = 1; size < whole.size(); ++size) wrong(whole.substr(0, size));
  EXPECT_EQ(wrong(sentence_pieces(3)),
            "tokenizer.model: it is a model of words (trainer_spec.model_type), and BPE and unigram are read.");
  EXPECT_EQ(wrong(sentence_pieces(4)),
            "tokenizer.model: it is a model of characters (trainer_spec.model_type), and BPE and unigram are read.");
  EXPECT_EQ(wrong(sentence_pieces(9)),
            "tokenizer.model: its trainer_spec.model_type is 9, which SentencePiece does not have.");
  EXPECT_EQ(wrong(sentence_pieces(2, field(40, 99))),
            "tokenizer.model: its trainer_spec.unk_id is 99, and there are 9 pieces.");
  EXPECT_EQ(wrong(sentence_pieces(2, field(24, 1))),
            "tokenizer.model: its spaces stand behind words (treat_whitespace_as_suffix), which is not known here.");
  EXPECT_EQ(wrong(sentence_pieces(2) + field(3, field(5, 0))),
            "tokenizer.model: its spaces are not marked (escape_whitespaces), which is not known here.");
  EXPECT_EQ(wrong(piece("a", 0, 7)), "tokenizer.model: piece 0 is of the kind 7, and SentencePiece has 1 to 6.");
  EXPECT_EQ(wrong(piece("\xff", 0)), "tokenizer.model: piece 0 is not UTF-8.");
  EXPECT_EQ(wrong(piece("", 0)), "tokenizer.model: piece 0 has no text.");
  EXPECT_EQ(wrong(piece("a", std::numeric_limits<float>::infinity())),
            "tokenizer.model: piece 0 has a score that is not a number.");
  write_bytes(folder_ / "tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_THAT(wrong(sentence_pieces(1)),
              HasSubstr("tokenizer.model: its tokenizer_class is XLMRobertaTokenizer, which numbers pieces or rewrites "
                        "texts in a way of its own; LlamaTokenizer, GemmaTokenizer and T5Tokenizer are known here."));
  write_bytes(folder_ / "tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<none>"})");
  EXPECT_EQ(wrong(sentence_pieces(2)),
            "tokenizer_config.json: add_bos_token asks for bos_token '<none>', which is not a token.");
  write_bytes(folder_ / "tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})");
  EXPECT_EQ(wrong(sentence_pieces(2)),
            "tokenizer_config.json: added_tokens_decoder.x: must be under the id of a token, from 0 to 9,999,999.");
}

TEST_F(OtherFiles, OfSentencePieceWithAnyByteChangedAreReadOrRefused) {
  const std::string whole = sentence_pieces(2, field(40, 0));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '\x01', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[at] = byte;
      fault("tokenizer.model", changed);  // lets any other exception through
    }
  }
}

TEST_F(OtherFiles, OfTiktokenAreNamedWithTheLine) {
  // "a", "b", "ab" in base64.
  const std::string ranks = "YQ== 0\nYg== 1\nYWI= 2\n";
  std::string whole = ranks;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 'a' || byte == 'b') continue;
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    whole += std::string{kDigits[byte >> 2], kDigits[(byte & 3) << 4]} + "== " + std::to_string(byte + 3) + "\n";
  }
  EXPECT_EQ(fault("cl100k_base.tiktoken", whole), "no error");
  EXPECT_EQ(fault("cl100k_base.tiktoken", ranks),
            "cl100k_base.tiktoken: it has no token for the byte 0, and ranks of tiktoken have one for each byte.");
  const auto wrong = [&](const std::string& content) { return fault("gpt2.tiktoken", content); };
  EXPECT_EQ(wrong(ranks + std::string(2672, 'Y') + " 3\n"), "gpt2.tiktoken:4: has a token longer than 2,000 bytes.");
  EXPECT_EQ(wrong(ranks + "YWI= 3\n"), "gpt2.tiktoken:4: has a token that stands above too.");
  EXPECT_EQ(wrong(ranks + "YWM= 2\n"), "gpt2.tiktoken:4: has the rank 2, which stands above too.");
  EXPECT_EQ(wrong(ranks + "YW!= 3\n"), "gpt2.tiktoken:4: must be a token in base64, a space and its rank.");
  EXPECT_EQ(wrong(ranks + "YWM=\n"), "gpt2.tiktoken:4: must be a token in base64, a space and its rank.");
  EXPECT_EQ(wrong(ranks + "YWM= -3\n"), "gpt2.tiktoken:4: must be a token in base64, a space and its rank.");
  EXPECT_EQ(wrong(ranks + "YWM= 50256\n"),
            "gpt2.tiktoken: the special token '<|endoftext|>' has the id 50256, which is the rank of another token.");
  EXPECT_THAT(
      fault("mine.tiktoken", ranks),
      HasSubstr("mine.tiktoken: it has the ranks of a tokenizer of tiktoken, and nothing tells how the tokenizer "
                "splits words. Name the file NAME.tiktoken with one of cl100k_base, gpt2, llama3, o200k_base,"));
  EXPECT_THAT(fault("llama3.tiktoken", ranks),
              HasSubstr("llama3.tiktoken: its special tokens are not known: tokenizer_config.json beside it has no"));
  write_bytes(folder_ / "qwen.tiktoken", ranks);
  EXPECT_THAT(fault("gpt2.tiktoken", ranks),
              HasSubstr("gpt2.tiktoken: stands beside qwen.tiktoken, and a model has one"));
}

TEST_F(TokenizerFile, GivesAWholePieceATokenOrTheUnknownOne) {
  json_["model"] = Json::parse(R"({"type": "WordLevel", "vocab": {"[UNK]": 5, "one": 7}, "unk_token": "[UNK]"})");
  json_["added_tokens"] = Json::array();
  json_["pre_tokenizer"] = Json::parse(R"({"type": "WhitespaceSplit"})");
  const Tokenizer tokenizer(written());
  Ids ids;
  Encoder(tokenizer).encode("one two one", ids);
  EXPECT_THAT(ids, ElementsAre(7, 5, 7));
  json_["model"]["unk_token"] = "<none>";
  const Tokenizer without(written());
  EXPECT_THROW(Encoder(without).encode("two", ids), RuntimeFault);
}

TEST_F(TokenizerFile, RefusesATextThatIsNotUtf8) {
  const Tokenizer tokenizer(written());
  Encoder encoder(tokenizer);
  Ids ids;
  for (const char* text : {"ab\xFF", "ab\xF0\x9F\x98", "ab\xC3", "ab\xED\xA0\x80"}) {
    EXPECT_THAT([&] { encoder.encode(text, ids); },
                ::testing::ThrowsMessage<RuntimeFault>("the text is not UTF-8 at byte 2."));
  }
}

TEST_F(TokenizerFile, StopsAPatternThatWouldNotEnd) {
  json_["pre_tokenizer"] =
      Json::parse(R"({"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"})");
  EXPECT_THAT([&] { ids_of(std::string(98, 'x') + "zy"); },
              ::testing::ThrowsMessage<RuntimeFault>(HasSubstr(
                  "the pattern '(x+x+)+y' cannot be matched with a text of 100 bytes: match limit exceeded.")));
}

/// Each value of a document in turn replaced by `value`, or erased where that is null.
void damage_each(Json& document, Json& at, const std::function<void()>& look) {
  const auto try_values = [&](Json& place) {
    const Json kept = place;
    for (const Json& value : {Json(), Json("x"), Json(-1), Json(true), Json::array(), Json::object()}) {
      place = value;
      look();
    }
    place = kept;
    damage_each(document, place, look);
  };
  if (at.is_object()) {
    for (auto& member : at.as_object()) try_values(member.second);
  } else if (at.is_array()) {
    for (Json& item : at.as_array()) try_values(item);
  }
}

TEST_F(TokenizerFile, NeverCrashesWhateverAValueIs) {
  const std::vector<const char*> models = {
      R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<u>": 3}, "merges": [["a", "b"]], "unk_token": "<u>",
          "fuse_unk": true, "byte_fallback": true, "end_of_word_suffix": "", "ignore_merges": false})",
      R"({"type": "Unigram", "vocab": [["<u>", 0], ["a", -1.5]], "unk_id": 0, "byte_fallback": false})",
      R"({"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##a": 2}, "unk_token": "[UNK]",
          "continuing_subword_prefix": "##", "max_input_chars_per_word": 10})"};
  int loaded = 0, refused = 0;
  for (const char* model : models) {
    Json document = Json::parse(R"({"added_tokens": [{"id": 9, "content": "<e>", "lstrip": true, "rstrip": true,
        "single_word": true, "normalized": true, "special": true}],
      "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "_"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
        {"type": "BertNormalizer", "clean_text": true, "strip_accents": null},
        {"type": "Strip", "strip_left": true, "strip_right": true}]},
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "_",
        "prepend_scheme": "first", "split": true}, {"type": "Split", "pattern": {"Regex": "a+"},
        "behavior": "MergedWithNext", "invert": true}, {"type": "CharDelimiterSplit", "delimiter": "-"}]},
      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}},
        {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [0]}}},
      "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": "_", "start": 1, "stop": 1}, {"type": "WordPiece", "prefix": "##"},
        {"type": "BPEDecoder", "suffix": "_"}, {"type": "Metaspace", "replacement": "_"}]}})");
    document["model"] = Json::parse(model);
    damage_each(document, document, [&] {
      write_bytes(folder_ / "tokenizer.json", document.dump());
      try {
        const Tokenizer tokenizer(folder_.path());
        Ids ids;
        Encoder(tokenizer).encode("a <e> b-\u00e9 aab", ids);
        decode_in_pieces(tokenizer, ids);
        ++loaded;
      } catch (const RuntimeFault&) {
        ++refused;
      }
    });
  }
  EXPECT_GT(loaded, 50);
  EXPECT_GT(refused, 500);
}

TEST_F(TokenizerFile, HandsOnTheTokensOfALongDocumentBeforeItsEnd) {
  const Tokenizer tokenizer(written());
  std::size_t taken = 0, appended = 0, most_waiting = 0;
  DocumentEncoder encoder(tokenizer, [&](std::span<const Id> ids) { taken += ids.size(); },
                          {.window = 4096, .context = 256});
  for (int line = 0; line < 3000; ++line) {
    const std::string text = "line " + std::to_string(line) + " of a long document\n";
    appended += text.size();
    encoder.append(text);
    most_waiting = std::max(most_waiting, appended - taken);
  }
  encoder.finish();
  EXPECT_EQ(taken, appended);
  EXPECT_LT(most_waiting, 8192);
}

}  // namespace
}  // namespace capstan::tokenizer
