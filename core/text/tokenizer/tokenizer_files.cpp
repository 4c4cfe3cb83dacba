#include "core/text/tokenizer/tokenizer_files.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/errors.hpp"
#include "core/text/sentence_pieces.hpp"
#include "core/text/text_file.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/sentence_piece_file.hpp"
#include "core/text/tokenizer/tiktoken_file.hpp"

namespace capstan::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJson = "tokenizer.json";
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kRanksEnd = ".tiktoken";

/// What transformers' class of a tokenizer adds to the pieces of tokenizer.model.
enum class Family { kPlain, kLlama, kGemma, kT5 };

/// A token of added_tokens_decoder of tokenizer_config.json.
struct AddedToken {
  std::int64_t id;
  Json json;  // as "added_tokens" of tokenizer.json has it
};

/// The members of tokenizer_config.json, and of config.json, that set how a file of tokens is used.
class Settings {
 public:
  explicit Settings(const TokenizerFiles& files)
      : json_(files.config()), place_(files.place(kConfig)), field_(json_, place_) {
    type_ = field_.text("tokenizer_class", "");
    if (type_.ends_with("Fast")) type_.resize(type_.size() - 4);
    if (!files.has("config.json")) return;
    const Json model = parse_json_text(files.read("config.json"), files.place("config.json"));
    const Json* type = model.find("model_type");
    if (type != nullptr && type->is_string()) model_type_ = type->as_string();
  }

  const Field& field() const { return field_; }
  const std::string& type() const { return type_; }
  const std::string& model_type() const { return model_type_; }
  /// Whether the class tells nothing of the kind of tokenizer.
  bool is_general() const { return type_.empty() || type_ == "PreTrainedTokenizer" || type_ == "TokenizersBackend"; }

  /// The text of a token, which may be an object with a member "content"; nothing where there is none.
  std::optional<std::string> token(const char* key) const {
    const auto found = field_.find(key);
    if (!found) return std::nullopt;
    return found->json().is_object() ? found->at("content").text() : found->text();
  }

  std::vector<AddedToken> added_tokens() const {
    std::vector<AddedToken> added;
    const auto section = field_.find("added_tokens_decoder");
    if (!section) return added;
    for (const auto& [key, value] : section->object()) {
      const Field field = section->at(key);
      std::int64_t id = -1;
      const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
      if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id > Field::kLargestId) {
        field.fail("must be under the id of a token, from 0 to 9,999,999.");
      }
      Json token = Json::object();
      token["id"] = id;
      token["content"] = field.at("content").text();
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
        token[flag] = field.flag(flag, false);
      }
      added.push_back({id, std::move(token)});
    }
    return added;
  }

 private:
  Json json_;
  std::string place_;
  Field field_;
  std::string type_, model_type_;
};

/// Puts the tokens of added_tokens_decoder into a tokenizer.json: a text that the vocabulary has otherwise under an id
/// gives way, as transformers has it.
void add_tokens(Json& tokenizer, const Settings& settings) {
  std::vector<AddedToken> tokens = settings.added_tokens();
  std::map<std::int64_t, std::string> texts;
  std::map<std::string, std::int64_t, std::less<>> ids;
  for (const AddedToken& token : tokens) {
    texts[token.id] = token.json.at("content").as_string();
    ids[texts[token.id]] = token.id;
  }
  const auto gives_way = [&](std::int64_t id, const std::string& text) {
    const auto of_id = texts.find(id);
    const auto of_text = ids.find(text);
    return (of_id != texts.end() && of_id->second != text) || (of_text != ids.end() && of_text->second != id);
  };
  Json& vocabulary = tokenizer["model"]["vocab"];
  if (vocabulary.is_array()) {
    const auto end = static_cast<std::int64_t>(vocabulary.size());
    for (const auto& [id, text] : texts) {
      if (id < end) vocabulary.as_array()[static_cast<std::size_t>(id)].as_array()[0] = text;
    }
  } else {
    std::erase_if(vocabulary.as_object(),
                  [&](const Json::Member& member) { return gives_way(member.second.as_integer(), member.first); });
  }
  Json::Array& added = tokenizer["added_tokens"].as_array();
  std::erase_if(added, [&](const Json& other) {
    return texts.contains(other.at("id").as_integer()) || ids.contains(other.at("content").as_string());
  });
  for (AddedToken& token : tokens) added.push_back(std::move(token.json));
  std::sort(added.begin(), added.end(),
            [](const Json& a, const Json& b) { return a.at("id").as_integer() < b.at("id").as_integer(); });
}

/// The id of a text among the added tokens and the vocabulary; -1: none.
std::int64_t id_of(const Json& tokenizer, std::string_view text) {
  for (const Json& token : tokenizer.at("added_tokens").as_array()) {
    if (token.at("content").as_string() == text) return token.at("id").as_integer();
  }
  const Json& vocabulary = tokenizer.at("model").at("vocab");
  if (const Json* id = vocabulary.find(text)) return id->as_integer();
  for (std::size_t i = 0; vocabulary.is_array() && i < vocabulary.size(); ++i) {
    if (vocabulary.as_array()[i].as_array()[0].as_string() == text) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// Puts bos_token before and eos_token behind a text where the settings or the class want them.
void add_ends(Json& tokenizer, const Settings& settings, bool begins, const std::string& begin, bool ends,
              const std::string& end) {
  const auto id = [&](const char* flag, bool otherwise, const char* key, const std::string& text) {
    if (!settings.field().flag(flag, otherwise)) return std::int64_t{-1};
    const std::int64_t found = id_of(tokenizer, text);
    if (found < 0) {
      settings.field().fail(std::string(flag) + " asks for " + key + " '" + text + "', which is not a token.");
    }
    return found;
  };
  const std::string before = settings.token("bos_token").value_or(begin);
  const std::string after = settings.token("eos_token").value_or(end);
  const std::int64_t first = id("add_bos_token", begins, "bos_token", before);
  const std::int64_t last = id("add_eos_token", ends, "eos_token", after);
  if (first >= 0 || last >= 0) tokenizer["post_processor"] = tokens_around(first, before, last, after);
}

Family family_of(const Settings& settings, const std::string& place) {
  const auto is_one_of = [](std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_one_of(settings.type(), {"LlamaTokenizer", "CodeLlamaTokenizer"})) return Family::kLlama;
  if (settings.type() == "GemmaTokenizer") return Family::kGemma;
  if (is_one_of(settings.type(), {"T5Tokenizer", "MT5Tokenizer"})) return Family::kT5;
  if (!settings.is_general()) {
    throw RuntimeFault(
        place + ": its tokenizer_class is " + settings.type() +
        ", which numbers pieces or rewrites texts in a way of its own; LlamaTokenizer, GemmaTokenizer and "
        "T5Tokenizer are known here. Have transformers write tokenizer.json: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).");
  }
  if (is_one_of(settings.model_type(), {"llama", "mistral", "mixtral"})) return Family::kLlama;
  if (settings.model_type().starts_with("gemma")) return Family::kGemma;
  if (is_one_of(settings.model_type(), {"t5", "mt5", "umt5"})) return Family::kT5;
  return Family::kPlain;
}

std::string text_of(const SentencePieceFile& file, std::int64_t id, const char* otherwise) {
  return id < 0 ? otherwise : file.pieces.pieces[static_cast<std::size_t>(id)].text;
}

/// T5's tokens for gaps of a text, behind the pieces, the one of number 0 last.
void add_sentinels(Json& tokenizer, const Settings& settings, std::int64_t first) {
  const auto told = settings.field().find("extra_ids");
  const std::int64_t count = told ? told->integer() : 100;
  if (count < 0 || count > 100'000) told->fail("must be from 0 to 100,000.");
  for (std::int64_t i = 0; i < count; ++i) {
    Json token = Json::object();
    token["id"] = first + i;
    token["content"] = "<extra_id_" + std::to_string(count - 1 - i) + ">";
    token["special"] = true;
    token["normalized"] = false;
    tokenizer["added_tokens"].push_back(std::move(token));
  }
}

/// T5 leaves out white space of all kinds before it looks at words.
void split_at_white_space(Json& tokenizer) {
  Json first = Json::object();
  first["type"] = "WhitespaceSplit";
  Json both = Json::object();
  both["type"] = "Sequence";
  both["pretokenizers"] = Json::Array{std::move(first), tokenizer.at("pre_tokenizer")};
  tokenizer["pre_tokenizer"] = std::move(both);
}

Json from_sentence_pieces(std::string_view bytes, const Settings& settings, const std::string& place) {
  SentencePieceFile file = read_sentence_pieces(bytes, place);
  SentencePieces& pieces = file.pieces;
  const Family family = family_of(settings, place);
  using Prefix = SentencePieces::Prefix;
  if (!settings.field().flag("add_prefix_space", pieces.prefix != Prefix::kNone)) {
    pieces.prefix = Prefix::kNone;
  } else if (family == Family::kLlama) {
    pieces.prefix = settings.field().flag("legacy", false) ? Prefix::kAlways : Prefix::kFirst;
  } else {
    pieces.prefix = family == Family::kT5 ? Prefix::kAlways : Prefix::kSections;
  }
  Json tokenizer = tokenizer_of_pieces(pieces);
  if (family == Family::kT5) split_at_white_space(tokenizer);
  if (family == Family::kT5 && settings.added_tokens().empty()) {
    add_sentinels(tokenizer, settings, static_cast<std::int64_t>(pieces.pieces.size()));
  }
  add_tokens(tokenizer, settings);
  const bool begins = family == Family::kLlama || family == Family::kGemma;
  add_ends(tokenizer, settings, begins, text_of(file, file.begin, "<s>"), family == Family::kT5,
           text_of(file, file.end, "</s>"));
  return tokenizer;
}

Json from_tiktoken(const std::string& bytes, const Settings& settings, const std::string& name,
                   const std::string& place) {
  std::string of = name.ends_with(kRanksEnd) ? name.substr(0, name.size() - std::string_view(kRanksEnd).size()) : "";
  if (settings.type() == "QWenTokenizer") of = "qwen";
  if (of.empty() && settings.is_general() && settings.model_type() == "llama") of = "llama3";
  std::optional<TiktokenKind> kind = known_tiktoken(of);
  const std::string pattern = settings.field().text("pat_str", settings.field().text("pattern", ""));
  if (!kind && pattern.empty()) {
    throw RuntimeFault(place +
                       ": it has the ranks of a tokenizer of tiktoken, and nothing tells how the tokenizer splits "
                       "words. Name the file NAME.tiktoken with one of " +
                       known_tiktoken_names() +
                       ", or put the pattern as pat_str, and added_tokens_decoder, into tokenizer_config.json.");
  }
  if (!kind) kind.emplace();
  if (!pattern.empty()) kind->pattern = pattern;
  const std::vector<AddedToken> added = settings.added_tokens();
  if (!added.empty()) kind->special.clear();
  if (added.empty() && kind->special.empty()) {
    throw RuntimeFault(place +
                       ": its special tokens are not known: tokenizer_config.json beside it has no "
                       "added_tokens_decoder, which names them.");
  }
  Json tokenizer = tokenizer_of_tiktoken(bytes, *kind, place);
  add_tokens(tokenizer, settings);
  add_ends(tokenizer, settings, of == "llama3", "<|begin_of_text|>", false, "<|endoftext|>");
  return tokenizer;
}

}  // namespace

bool TokenizerFiles::has(const std::string& name) const {
  std::error_code error;
  return files_ ? files_->contains(name) : fs::exists(folder_ / name, error);
}

std::string TokenizerFiles::place(const std::string& name) const {
  return files_ ? where_ + ": " + name : (folder_ / name).string();
}

std::string TokenizerFiles::read(const std::string& name) const {
  if (files_) return files_->at(name);
  std::error_code error;
  const fs::path file = folder_ / name;
  // A pipe would be waited for.
  if (fs::exists(file, error) && fs::is_regular_file(file, error)) return read_text_file(file);
  throw RuntimeFault(file.string() + ": cannot be read as the file of a tokenizer.");
}

std::optional<std::string> TokenizerFiles::tokens() const {
  for (const char* name : {kJson, "tokenizer.model", "spiece.model"}) {
    if (has(name)) return name;
  }
  std::vector<std::string> ranks;
  const auto look_at = [&](const std::string& name) {
    if (name.ends_with(kRanksEnd)) ranks.push_back(name);
  };
  if (files_) {
    for (const auto& [name, bytes] : *files_) look_at(name);
  } else {
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      look_at(it->path().filename().string());
    }
  }
  if (ranks.empty()) return std::nullopt;
  std::sort(ranks.begin(), ranks.end());
  if (ranks.size() > 1) {
    throw RuntimeFault(place(ranks[0]) + ": stands beside " + ranks[1] +
                       ", and a model has one tokenizer. Name the file that is the model's.");
  }
  return ranks[0];
}

Json TokenizerFiles::config() const {
  return has(kConfig) ? parse_json_text(read(kConfig), place(kConfig)) : Json::object();
}

Json tokenizer_json(const TokenizerFiles& files, const std::string& name) {
  const std::string bytes = files.read(name), place = files.place(name);
  if (name.ends_with(".json") || bytes.starts_with('{')) return parse_json_text(bytes, place);
  const Settings settings(files);
  return is_tiktoken(bytes) ? from_tiktoken(bytes, settings, name, place)
                            : from_sentence_pieces(bytes, settings, place);
}

}  // namespace capstan::tokenizer
