#include "core/pretrained/gguf_tokenizer_export.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/errors.hpp"
#include "core/pretrained/gguf_word_splits.hpp"
#include "core/text/sentence_pieces.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/post_processor.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan {
namespace {

using tokenizer::Field;
using Kind = SentencePieces::Kind;

constexpr const char* kSpaceMark = "\u2581";

[[noreturn]] void refuse(const std::string& reason) { throw RuntimeFault(reason); }

using Merge = std::pair<std::string, std::string>;

std::vector<Merge> merges_of(const Field& model) {
  std::vector<Merge> merges;
  for (const Json& merge : model.at("merges").array()) {
    if (merge.is_array()) {
      merges.emplace_back(merge.as_array().at(0).as_string(), merge.as_array().at(1).as_string());
    } else {
      const std::string& text = merge.as_string();
      const std::size_t space = text.find(' ');
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
  }
  return merges;
}

/// A normalizer or pre-tokenizer and its parts, in order; a Sequence by itself is not among them.
std::vector<Field> steps_of(const Field& file, const char* section, const char* parts) {
  const auto found = file.find(section);
  if (!found) return {};
  return found->at("type").text() == "Sequence" ? found->at(parts).items() : std::vector<Field>{*found};
}

class Translation {
 public:
  Translation(const Json& tokenizer, const Json& config, std::int64_t vocabulary)
      : file_(tokenizer, "tokenizer.json"), config_(config), size_(static_cast<std::size_t>(vocabulary)) {}

  GgufTokenizerMetadata make(const std::optional<std::string>& chat_template) {
    const Field model = file_.at("model");
    const std::string type = model.text("type", "BPE");
    if (type != "BPE")
      refuse("its tokenizer is of the type " + type + ", and a GGUF file that is written here holds BPE.");
    read_tokens(model);
    made_.facts["tokenizer.ggml.model"] = is_byte_level() ? "gpt2" : "llama";
    is_byte_level() ? put_byte_level(model) : put_sentence_pieces(model);
    put_ends();
    put_named_tokens();
    if (chat_template) made_.facts["tokenizer.chat_template"] = *chat_template;
    made_.arrays.add("tokenizer.ggml.tokens", texts_);
    made_.arrays.add("tokenizer.ggml.token_type", kinds_);
    return std::move(made_);
  }

 private:
  bool is_byte_level() const {
    const std::vector<Field> steps = steps_of(file_, "pre_tokenizer", "pretokenizers");
    return !steps.empty() && steps.back().at("type").text() == "ByteLevel";
  }

  void put(std::int64_t id, const std::string& text, Kind kind, const char* what) {
    if (id < 0 || static_cast<std::size_t>(id) >= size_) {
      refuse(std::string(what) + " '" + text + "' has the id " + std::to_string(id) +
             ", and the model's vocab_size is " + std::to_string(size_) + ".");
    }
    texts_[static_cast<std::size_t>(id)] = text;
    kinds_[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(kind);
  }

  void read_tokens(const Field& model) {
    texts_.resize(size_);
    kinds_.assign(size_, static_cast<std::int32_t>(Kind::kUnused));
    for (const auto& [text, id] : model.at("vocab").object()) put(id.as_integer(), text, Kind::kNormal, "the token");
    std::string greedy;
    if (const auto added = file_.find("added_tokens")) {
      for (const Field& token : added->items()) {
        const bool special = token.flag("special", false);
        const std::string& text = token.at("content").text();
        put(token.at("id").id(), text, special ? Kind::kControl : Kind::kUserDefined, "the added token");
        const bool takes =
            token.flag("lstrip", false) || token.flag("rstrip", false) || token.flag("single_word", false);
        if (takes && greedy.empty()) greedy = text;
      }
    }
    if (!greedy.empty()) {
      made_.notes.push_back(
          "llama.cpp takes no white space with special tokens and finds them within words, where the "
          "model's own tokenizer does otherwise for '" +
          greedy + "' (lstrip, rstrip, single_word).");
    }
    for (std::size_t id = 0; id < size_; ++id) {
      if (texts_[id].empty()) texts_[id] = "[PAD" + std::to_string(id) + "]";
    }
    const std::set<std::string_view> distinct(texts_.begin(), texts_.end());
    if (distinct.size() < size_) refuse("two of its tokens have one text.");
  }

  void put_byte_level(const Field& model) {
    for (const Field& step : steps_of(file_, "normalizer", "normalizers")) {
      if (step.at("type").text() != "NFC") {
        refuse("llama.cpp has no equal of its normalizer, " + step.at("type").text() + ".");
      }
      made_.notes.push_back(
          "llama.cpp does not compose characters (NFC), as the model's own tokenizer does: texts in "
          "decomposed form get other tokens.");
    }
    std::string reason;
    const GgufWordSplit* split =
        word_split_of(file_.at("pre_tokenizer").json(), model.flag("ignore_merges", false), reason);
    if (split == nullptr) refuse(reason + ".");
    made_.facts["tokenizer.ggml.pre"] = split->name;
    std::vector<std::string> merges;
    for (const auto& [left, right] : merges_of(model)) {
      if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
        refuse("a merge holds a space, which a GGUF file cannot.");
      }
      merges.push_back(left + " " + right);
    }
    made_.arrays.add("tokenizer.ggml.merges", merges);
  }

  /// Whether a space is put before texts. Refuses every other way with spaces than SentencePiece's.
  bool prefix_of_spaces() {
    bool prefixes = false, marks = false;
    for (const Field& step : steps_of(file_, "normalizer", "normalizers")) {
      const std::string& type = step.at("type").text();
      if (type == "Prepend" && step.at("prepend").text() == kSpaceMark) {
        prefixes = true;
      } else if (type == "Replace" && step.at("pattern").text("String", "") == " " &&
                 step.at("content").text() == kSpaceMark) {
        marks = true;
      } else {
        refuse("llama.cpp has no equal of its normalizer, " + type + ".");
      }
    }
    for (const Field& step : steps_of(file_, "pre_tokenizer", "pretokenizers")) {
      const std::string& type = step.at("type").text();
      if (type == "Metaspace" && !marks && !step.flag("split", true)) {
        if (step.text("replacement", kSpaceMark) != kSpaceMark) {
          refuse("llama.cpp has no equal of its pre_tokenizer, Metaspace with another replacement than U+2581.");
        }
        // Older files have add_prefix_space in place of prepend_scheme.
        const std::string scheme =
            step.text("prepend_scheme", step.flag("add_prefix_space", true) ? "always" : "never");
        prefixes = scheme != "never";
        marks = true;
        if (prefixes) {
          made_.notes.push_back(
              "llama.cpp puts a space before every part of a text between special tokens, the model's "
              "own tokenizer where the text has none" +
              std::string(scheme == "first" ? ", and before the first part alone." : "."));
        }
      } else if (type != "Split" || !marks || step.at("pattern").text("String", "") != " ") {  // no space is left
        refuse("llama.cpp has no equal of its pre_tokenizer, " + type + ".");
      }
    }
    if (!marks) refuse("its tokenizer neither takes bytes nor marks spaces as SentencePiece does.");
    return prefixes;
  }

  void put_sentence_pieces(const Field& model) {
    if (!model.flag("byte_fallback", false)) {
      refuse("it has no tokens for bytes (byte_fallback), which llama.cpp needs.");
    }
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.text(affix, "").empty()) refuse(std::string("llama.cpp has no equal of its ") + affix + ".");
    }
    const bool prefixes = prefix_of_spaces();
    made_.facts["tokenizer.ggml.pre"] = "default";
    made_.facts["tokenizer.ggml.add_space_prefix"] = prefixes;
    for (std::size_t id = 0; id < size_; ++id) {
      const std::string& text = texts_[id];
      if (text.size() == 6 && text.starts_with("<0x") && text.ends_with('>')) {
        kinds_[id] = static_cast<std::int32_t>(Kind::kByte);
      }
      if (text == model.text("unk_token", "")) kinds_[id] = static_cast<std::int32_t>(Kind::kUnknown);
    }
    made_.arrays.add("tokenizer.ggml.scores", scores_of(merges_of(model)));
  }

  /// SentencePiece merges into the piece of the greatest score, wherever it is cut: a score for each token, lower the
  /// later it is merged into. Refuses merges that no scores order.
  std::vector<float> scores_of(const std::vector<Merge>& merges) const {
    std::unordered_map<std::string_view, std::size_t> ids;
    for (std::size_t id = 0; id < size_; ++id) {
      if (kinds_[id] == static_cast<std::int32_t>(Kind::kNormal)) ids.emplace(texts_[id], id);
    }
    std::vector<float> scores(size_, 0.0F);
    std::vector<std::size_t> cuts(size_, 0);
    std::size_t last = size_;
    float score = 0;
    for (const auto& [left, right] : merges) {
      const auto into = ids.find(left + right);
      if (into == ids.end()) continue;  // a special token, which is found before any merge
      if (into->second != last && cuts[into->second] > 0) {
        refuse("the merges into '" + left + right +
               "' do not follow each other, and llama.cpp orders them by one score.");
      }
      if (into->second != last) score -= 1;
      last = into->second;
      scores[last] = score;
      ++cuts[last];
    }
    for (const auto& [text, id] : ids) {
      std::size_t possible = 0;
      for (std::size_t cut = 1; cut < text.size(); ++cut) {
        possible += ids.contains(text.substr(0, cut)) && ids.contains(text.substr(cut)) ? 1 : 0;
      }
      if (possible != cuts[id]) {
        refuse("'" + std::string(text) + "' is put together in " + std::to_string(cuts[id]) +
               " ways by its merges, and "
               "llama.cpp would in " +
               std::to_string(possible) + ".");
      }
    }
    return scores;
  }

  void put_ends() {
    const tokenizer::SpecialTokens around = tokenizer::special_tokens(file_);
    if (around.before.size() > 1 || around.after.size() > 1) {
      refuse("its post_processor puts several tokens before or behind a text, and llama.cpp puts one.");
    }
    const auto put_end = [&](const tokenizer::Ids& ids, const char* flag, const char* key) {
      made_.facts[flag] = !ids.empty();
      if (!ids.empty()) made_.facts[key] = static_cast<std::int64_t>(ids[0]);
    };
    put_end(around.before, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id");
    put_end(around.after, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id");
  }

  void put_named_tokens() {
    const std::pair<const char*, const char*> names[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                         {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                         {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                         {"pad_token", "tokenizer.ggml.padding_token_id"}};
    for (const auto& [name, key] : names) {
      const Json* token = config_.find(name);
      if (token != nullptr && token->is_object()) token = token->find("content");
      if (token == nullptr || !token->is_string() || made_.facts.find(key) != nullptr) continue;
      const auto found = std::find(texts_.begin(), texts_.end(), token->as_string());
      if (found != texts_.end()) made_.facts[key] = static_cast<std::int64_t>(found - texts_.begin());
    }
  }

  Field file_;
  const Json& config_;
  std::size_t size_;
  std::vector<std::string> texts_;
  std::vector<std::int32_t> kinds_;
  GgufTokenizerMetadata made_;
};

}  // namespace

GgufTokenizerMetadata gguf_tokenizer_metadata(const Json& tokenizer, const Json& config,
                                              const std::optional<std::string>& chat_template,
                                              std::int64_t vocabulary) {
  const tokenizer::Tokenizer checked(tokenizer, "tokenizer.json");  // every value is of its type from here on
  return Translation(tokenizer, config, vocabulary).make(chat_template);
}

}  // namespace capstan
