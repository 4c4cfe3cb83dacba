#include "core/pretrained/gguf_tokenizer.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// How words are split before the merges, by the name that llama.cpp gives to it: the pre_tokenizer of the models'
/// own tokenizer.json.
struct WordSplit {
  const char* name;
  const char* pattern;  // a word; null: that of GPT-2
  bool digits_alone = false;
  bool composes = false;     // NFC
  bool whole_words = false;  // a word that is a token needs no merges
  bool begins = false;       // the first token of a text is bos_token, unless the file says otherwise
};

constexpr const char* kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr WordSplit kSplits[] = {
    {"gpt-2", nullptr},
    {"smollm", nullptr, true},
    {"llama-bpe", kLlama3Words, false, false, true, true},
    {"qwen2", kQwen2Words, false, true},
};

/// Kinds of tokens (tokenizer.ggml.token_type).
enum class TokenKind : std::int32_t { kNormal = 1, kControl = 3, kUserDefined = 4 };

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

  /// The text of the token whose number stands under a key; nothing where the key is not there.
  std::optional<std::string> token(const char* key, const std::vector<std::string_view>& tokens) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) return std::nullopt;
    const auto id = entry->integer();
    if (!id || *id < 0 || static_cast<std::uint64_t>(*id) >= tokens.size()) {
      fail(std::string(key) + " must be the number of a token, below " + std::to_string(tokens.size()) + ".");
    }
    return std::string(tokens[static_cast<std::size_t>(*id)]);
  }

 private:
  const GgufEntry& array(const char* key, GgufValueType type) const {
    const GgufEntry* entry = header_.find(key);
    if (entry == nullptr) fail("it has no " + std::string(key) + ", which its tokenizer needs.");
    const bool is_array = entry->type == GgufValueType::kArray &&
                          static_cast<GgufValueType>(number_at<std::uint32_t>(entry->value, 0)) == type;
    if (!is_array)
      fail(std::string(key) + " must be an array of " + (type == GgufValueType::kString ? "texts." : "int32."));
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

Json byte_level(bool splits) {
  Json made = with_type("ByteLevel");
  made["add_prefix_space"] = false;
  made["trim_offsets"] = true;
  made["use_regex"] = splits;
  return made;
}

Json pre_tokenizer(const WordSplit& split) {
  if (split.pattern == nullptr && !split.digits_alone) return byte_level(true);
  Json first = with_type(split.digits_alone ? "Digits" : "Split");
  if (split.digits_alone) {
    first["individual_digits"] = true;
  } else {
    first["pattern"] = Json::object();
    first["pattern"]["Regex"] = split.pattern;
    first["behavior"] = "Isolated";
    first["invert"] = false;
  }
  Json made = with_type("Sequence");
  made["pretokenizers"] = Json::Array{first, byte_level(split.pattern == nullptr)};
  return made;
}

/// bos_token before each text.
Json beginning(const std::string& token, std::int64_t id) {
  Json special = Json::object(), text = Json::object();
  special["SpecialToken"] = Json::object();
  special["SpecialToken"]["id"] = token;
  special["SpecialToken"]["type_id"] = 0;
  text["Sequence"] = Json::object();
  text["Sequence"]["id"] = "A";
  text["Sequence"]["type_id"] = 0;
  Json made = with_type("TemplateProcessing");
  made["single"] = Json::Array{special, text};
  made["pair"] = Json::Array{special, text};
  Json known = Json::object();
  known["id"] = token;
  known["ids"] = Json::Array{id};
  known["tokens"] = Json::Array{token};
  made["special_tokens"] = Json::object();
  made["special_tokens"][token] = known;
  return made;
}

}  // namespace

bool has_tokenizer(const GgufHeader& header) {
  const GgufEntry* kind = header.find("tokenizer.ggml.model");
  return kind != nullptr && kind->text() != "none";
}

GgufTokenizer tokenizer_of_gguf(const GgufHeader& header, const std::string& where) {
  const Reader reader(header, where);
  const std::string kind = reader.text("tokenizer.ggml.model", "");
  if (!has_tokenizer(header)) reader.fail("it has no tokenizer. Name a folder with tokenizer.json.");
  if (kind != "gpt2") {
    reader.fail("its tokenizer is of the kind '" + kind +
                "' (tokenizer.ggml.model); of GGUF files 'gpt2' is read, which is byte-level BPE. Name a folder of the "
                "same model with tokenizer.json.");
  }
  const std::string pre = reader.text("tokenizer.ggml.pre", "gpt-2");
  const WordSplit* split = nullptr;
  std::string known;
  for (const WordSplit& one : kSplits) {
    if (pre == one.name) split = &one;
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  if (split == nullptr) {
    reader.fail("its tokenizer splits words as '" + pre + "' (tokenizer.ggml.pre), and known are " + known +
                ". Name a folder of the same model with tokenizer.json.");
  }

  const std::vector<std::string_view> tokens = reader.texts("tokenizer.ggml.tokens");
  const std::vector<TokenKind> kinds = reader.kinds(tokens.size());
  Json::Object vocabulary;
  Json::Array added;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string text(tokens[id]);
    vocabulary.emplace_back(text, static_cast<std::int64_t>(id));
    if (kinds[id] != TokenKind::kControl && kinds[id] != TokenKind::kUserDefined) continue;
    Json token = Json::object();
    token["id"] = static_cast<std::int64_t>(id);
    token["content"] = text;
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
    token["special"] = kinds[id] == TokenKind::kControl;
    added.push_back(token);
  }
  Json::Array merges;
  for (const std::string_view merge : reader.texts("tokenizer.ggml.merges")) merges.push_back(std::string(merge));

  GgufTokenizer made{Json::object(), Json::object()};
  made.tokenizer["version"] = "1.0";
  made.tokenizer["added_tokens"] = std::move(added);
  if (split->composes) made.tokenizer["normalizer"] = with_type("NFC");
  made.tokenizer["pre_tokenizer"] = pre_tokenizer(*split);
  made.tokenizer["decoder"] = byte_level(true);
  Json model = with_type("BPE");
  model["ignore_merges"] = split->whole_words;
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  made.tokenizer["model"] = std::move(model);

  made.config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::pair<const char*, const char*> names[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                       {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                       {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                       {"pad_token", "tokenizer.ggml.padding_token_id"}};
  for (const auto& [name, key] : names) {
    if (const auto text = reader.token(key, tokens)) made.config[name] = *text;
  }
  const Json* bos = made.config.find("bos_token");
  if (bos != nullptr && reader.flag("tokenizer.ggml.add_bos_token", split->begins)) {
    const std::string text = bos->as_string();
    made.tokenizer["post_processor"] = beginning(text, *header.find("tokenizer.ggml.bos_token_id")->integer());
  }
  const std::string chat = reader.text("tokenizer.chat_template", "");
  if (!chat.empty()) made.config["chat_template"] = chat;
  return made;
}

}  // namespace capstan
