#include "core/pretrained/gguf_tokenizer.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/pretrained/gguf_word_splits.hpp"
#include "core/text/sentence_pieces.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace {

/// Kinds of tokens (tokenizer.ggml.token_type) have SentencePiece's numbers.
using TokenKind = SentencePieces::Kind;

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

constexpr std::size_t kArrayHead = 4 + 8;  // the type of the elements, and how many there are

class Reader {
 public:
  Reader(const GgufHeader& header, const std::string& where) : header_(header), where_(where) {}

  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  std::string text(const char* key, const char* otherwise) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) return otherwise;
    const auto text = entry->text();
    if (!text) fail(std::string(key) + " must be a text.");
    return std::string(*text);
  }

  bool flag(const char* key, bool otherwise) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) return otherwise;
    if (entry->type != GgufValueType::kBool) fail(std::string(key) + " must be true or false.");
    return entry->value[0] != 0;
  }

  std::vector<std::string_view> texts(const char* key) const {
    const GgufEntry& entry = array(key, GgufValueType::kString);
    std::vector<std::string_view> all;
    for (std::size_t at = kArrayHead; all.size() < entry.elements;) {
      const auto length = static_cast<std::size_t>(number_at<std::uint64_t>(entry.value, at));
      all.push_back(entry.value.substr(at + 8, length));
      at += 8 + length;
    }
    return all;
  }

  /// Of each of so many tokens; normal ones where the file does not tell.
  std::vector<TokenKind> kinds(std::size_t tokens) const {
    constexpr const char* kKey = "tokenizer.ggml.token_type";
    std::vector<TokenKind> all(tokens, TokenKind::kNormal);
    if (header_.find(kKey) == nullptr) return all;
    const GgufEntry& entry = array(kKey, GgufValueType::kInt32);
    if (entry.elements != tokens) {
      fail(std::string(kKey) + " has " + std::to_string(entry.elements) + " numbers, and there are " +
           std::to_string(tokens) + " tokens.");
    }
    for (std::size_t i = 0; i < tokens; ++i) {
      all[i] = static_cast<TokenKind>(number_at<std::int32_t>(entry.value, kArrayHead + 4 * i));
    }
    return all;
  }

  /// A number for each of so many tokens: float32; zeros where the file has none.
  std::vector<float> scores(std::size_t tokens) const {
    constexpr const char* kKey = "tokenizer.ggml.scores";
    std::vector<float> all(tokens, 0.0F);
    if (header_.find(kKey) == nullptr) return all;
    const GgufEntry& entry = array(kKey, GgufValueType::kFloat32);
    if (entry.elements != tokens) {
      fail(std::string(kKey) + " has " + std::to_string(entry.elements) + " numbers, and there are " +
           std::to_string(tokens) + " tokens.");
    }
    for (std::size_t i = 0; i < tokens; ++i) {
      all[i] = number_at<float>(entry.value, kArrayHead + 4 * i);
      if (!std::isfinite(all[i])) fail(std::string(kKey) + "[" + std::to_string(i) + "] is not a number.");
    }
    return all;
  }

  /// An array of bytes; empty where the file has none.
  std::string bytes(const char* key) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) return "";
    const bool is_array = entry->type == GgufValueType::kArray;
    const auto type = is_array ? static_cast<GgufValueType>(number_at<std::uint32_t>(entry->value, 0)) : entry->type;
    if (!is_array || (type != GgufValueType::kUint8 && type != GgufValueType::kInt8)) {
      fail(std::string(key) + " must be an array of bytes.");
    }
    return std::string(entry->value.substr(kArrayHead));
  }

  /// The number of a token under a key; `otherwise` where the key is not there.
  std::int64_t id(const char* key, std::size_t tokens, std::int64_t otherwise) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) return otherwise < static_cast<std::int64_t>(tokens) ? otherwise : -1;
    const auto id = entry->integer();
    if (id && *id >= 0 && static_cast<std::uint64_t>(*id) < tokens) return *id;
    fail(std::string(key) + " must be the number of a token, below " + std::to_string(tokens) + ".");
  }

 private:
  const GgufEntry& array(const char* key, GgufValueType type) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) fail("it has no " + std::string(key) + ", which its tokenizer needs.");
    const bool is_array = entry->type == GgufValueType::kArray &&
                          static_cast<GgufValueType>(number_at<std::uint32_t>(entry->value, 0)) == type;
    if (!is_array)
      fail(std::string(key) + " must be an array of " +
           (type == GgufValueType::kString    ? "texts."
            : type == GgufValueType::kFloat32 ? "float32."
                                              : "int32."));
    return *entry;
  }

  const GgufHeader& header_;
  const std::string& where_;
};

Json with_type(const char* type) {
  Json made = Json::object();
  made["type"] = type;
  return made;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
    size = text[at] == '\0' ? 1 : utf8_sequence_length(text.substr(at));
    if (size == 0) return false;
  }
  return true;
}

Json::Array pairs_of(const std::vector<std::string_view>& merges) {
  Json::Array pairs;
  for (const std::string_view merge : merges) pairs.push_back(std::string(merge));
  return pairs;
}

/// The tokenizer of a file, and what llama.cpp has as defaults of its kind.
class GgufVocabulary {
 public:
  GgufVocabulary(const GgufHeader& header, const std::string& where)
      : reader_(header, where), kind_(reader_.text("tokenizer.ggml.model", "")) {
    if (!has_tokenizer(header)) reader_.fail("it has no tokenizer. Name a folder with tokenizer.json.");
    if (kind_ != "gpt2" && kind_ != "llama" && kind_ != "t5" && kind_ != "bert") {
      reader_.fail("its tokenizer is of the kind '" + kind_ +
                   "' (tokenizer.ggml.model); of GGUF files 'gpt2', which is byte-level BPE, 'llama', 't5' and 'bert' "
                   "are read. Name a folder of the same model with tokenizer.json.");
    }
    texts_ = reader_.texts("tokenizer.ggml.tokens");
    if (texts_.empty()) reader_.fail("tokenizer.ggml.tokens is empty.");
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      if (!is_utf8(texts_[id])) reader_.fail("tokenizer.ggml.tokens[" + std::to_string(id) + "] is not UTF-8.");
    }
    kinds_ = reader_.kinds(texts_.size());
  }

  GgufTokenizer make() {
    GgufTokenizer made{Json::object(), Json::object()};
    made.config["tokenizer_class"] = "PreTrainedTokenizerFast";
    if (kind_ == "gpt2") {
      made.tokenizer = byte_level();
    } else if (kind_ == "bert") {
      made.tokenizer = word_piece();
    } else {
      made.tokenizer = sentence_pieces();
    }
    name_tokens(made.config);
    add_ends(made.tokenizer);
    const std::string chat = reader_.text("tokenizer.chat_template", "");
    if (!chat.empty()) made.config["chat_template"] = chat;
    return made;
  }

 private:
  std::string text_of(std::int64_t id) const { return std::string(texts_[static_cast<std::size_t>(id)]); }

  /// Whether an id has no token: converters put "[PAD17]" there, because a file has a text for each row.
  bool stands_for_none(std::size_t id) const {
    return kinds_[id] == TokenKind::kUnused && texts_[id] == "[PAD" + std::to_string(id) + "]";
  }

  Json::Array added_tokens(bool with_unknown) const {
    Json::Array added;
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      const bool special = kinds_[id] == TokenKind::kControl || (with_unknown && kinds_[id] == TokenKind::kUnknown);
      if (!special && kinds_[id] != TokenKind::kUserDefined) continue;
      Json token = Json::object();
      token["id"] = static_cast<std::int64_t>(id);
      token["content"] = std::string(texts_[id]);
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
      token["special"] = special;
      added.push_back(std::move(token));
    }
    return added;
  }

  Json byte_level() {
    const std::string pre = reader_.text("tokenizer.ggml.pre", "default");
    const GgufWordSplit* split = find_word_split(pre);
    if (split == nullptr) {
      reader_.fail("its tokenizer splits words as '" + pre + "' (tokenizer.ggml.pre), and known are " +
                   known_word_splits() + ". Name a folder of the same model with tokenizer.json.");
    }
    begins_ = split->begins;
    Json::Object vocabulary;
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      if (!stands_for_none(id)) vocabulary.emplace_back(std::string(texts_[id]), static_cast<std::int64_t>(id));
    }
    Json made = Json::object();
    made["version"] = "1.0";
    made["added_tokens"] = added_tokens(false);
    if (split->composes) made["normalizer"] = with_type("NFC");
    made["pre_tokenizer"] = pre_tokenizer_of(*split);
    made["decoder"] = with_type("ByteLevel");
    Json model = with_type("BPE");
    model["ignore_merges"] = split->whole_words;
    model["vocab"] = std::move(vocabulary);
    model["merges"] = pairs_of(reader_.texts("tokenizer.ggml.merges"));
    made["model"] = std::move(model);
    return made;
  }

  Json sentence_pieces() {
    SentencePieces pieces;
    pieces.has_merges = kind_ == "llama";
    const std::vector<float> scores = reader_.scores(texts_.size());
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      if (texts_[id].size() > tokenizer::Field::kLongestToken) {
        reader_.fail("tokenizer.ggml.tokens[" + std::to_string(id) + "] is longer than 2,000 bytes.");
      }
      pieces.pieces.push_back({std::string(texts_[id]), scores[id], kinds_[id]});
      pieces.has_bytes = pieces.has_bytes || kinds_[id] == TokenKind::kByte;
    }
    pieces.unknown = reader_.id("tokenizer.ggml.unknown_token_id", texts_.size(), pieces.has_merges ? 0 : 2);
    pieces.trims_spaces = !pieces.has_merges && reader_.flag("tokenizer.ggml.remove_extra_whitespaces", false);
    pieces.prefix = reader_.flag("tokenizer.ggml.add_space_prefix", pieces.has_merges)
                        ? SentencePieces::Prefix::kSections
                        : SentencePieces::Prefix::kNone;
    if (!pieces.has_merges) pieces.character_map = reader_.bytes("tokenizer.ggml.precompiled_charsmap");
    begins_ = pieces.has_merges;
    ends_ = !pieces.has_merges;
    begin_ = pieces.has_merges ? 1 : -1;
    end_ = pieces.has_merges ? 2 : 1;
    return tokenizer_of_pieces(pieces);
  }

  /// BERT's tokens, which stand here with U+2581 before words and bare within them.
  Json word_piece() {
    constexpr std::string_view kWordMark = "\u2581";
    Json::Object vocabulary;
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      std::string text(texts_[id]);
      if (text.starts_with(kWordMark)) {
        text.erase(0, kWordMark.size());
      } else if (kinds_[id] == TokenKind::kNormal) {
        text.insert(0, "##");
      }
      vocabulary.emplace_back(std::move(text), static_cast<std::int64_t>(id));
    }
    Json made = Json::object();
    made["version"] = "1.0";
    made["added_tokens"] = added_tokens(true);
    Json normalizer = with_type("BertNormalizer");
    normalizer["clean_text"] = true;
    normalizer["handle_chinese_chars"] = true;
    normalizer["lowercase"] = reader_.flag("tokenizer.ggml.normalizer.lowercase", true);
    normalizer["strip_accents"] =
        reader_.flag("tokenizer.ggml.normalizer.strip_accents", normalizer.at("lowercase").as_bool());
    made["normalizer"] = std::move(normalizer);
    made["pre_tokenizer"] = with_type("BertPreTokenizer");
    made["decoder"] = with_type("WordPiece");
    Json model = with_type("WordPiece");
    const std::int64_t unknown = reader_.id("tokenizer.ggml.unknown_token_id", texts_.size(), 100);
    if (unknown < 0) reader_.fail("it has no tokenizer.ggml.unknown_token_id, which its tokenizer needs.");
    model["unk_token"] = text_of(unknown);
    model["vocab"] = std::move(vocabulary);
    made["model"] = std::move(model);
    begins_ = ends_ = true;
    begin_ = 101;
    end_ = 102;
    return made;
  }

  void name_tokens(Json& config) const {
    const std::pair<const char*, const char*> names[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                         {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                         {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                         {"sep_token", "tokenizer.ggml.seperator_token_id"},
                                                         {"pad_token", "tokenizer.ggml.padding_token_id"}};
    for (const auto& [name, key] : names) {
      const std::int64_t id = reader_.id(key, texts_.size(), -1);
      if (id >= 0) config[name] = text_of(id);
    }
  }

  void add_ends(Json& tokenizer) const {
    const bool is_bert = kind_ == "bert";
    const char* const end_key = is_bert ? "tokenizer.ggml.seperator_token_id" : "tokenizer.ggml.eos_token_id";
    const char* const end_flag = is_bert ? "tokenizer.ggml.add_sep_token" : "tokenizer.ggml.add_eos_token";
    const std::int64_t first = reader_.flag("tokenizer.ggml.add_bos_token", begins_)
                                   ? reader_.id("tokenizer.ggml.bos_token_id", texts_.size(), begin_)
                                   : -1;
    const std::int64_t last = reader_.flag(end_flag, ends_) ? reader_.id(end_key, texts_.size(), end_) : -1;
    if (first < 0 && last < 0) return;
    tokenizer["post_processor"] =
        tokens_around(first, first < 0 ? "" : text_of(first), last, last < 0 ? "" : text_of(last));
  }

  Reader reader_;
  std::string kind_;
  std::vector<std::string_view> texts_;
  std::vector<TokenKind> kinds_;
  bool begins_ = false, ends_ = false;  // whether a token stands before and behind a text
  std::int64_t begin_ = -1, end_ = -1;  // their ids where the file does not tell; -1: none
};

}  // namespace

bool has_tokenizer(const GgufHeader& header) {
  const GgufEntry* kind = header.find("tokenizer.ggml.model");
  return kind != nullptr && kind->text() != "none" && kind->text() != "no_vocab";
}

GgufTokenizer tokenizer_of_gguf(const GgufHeader& header, const std::string& where) {
  return GgufVocabulary(header, where).make();
}

}  // namespace capstan
