#include "core/pretrained/gguf_word_splits.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/text/word_patterns.hpp"

namespace capstan {
namespace {

using word_patterns::kGpt2, word_patterns::kGpt4o, word_patterns::kLlama3, word_patterns::kQwen2;

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kUpToThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kIdeographsAndKana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloom = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";

/// Names of which an export takes the first that fits stand first.
const std::vector<GgufWordSplit>& all_splits() {
  static const std::vector<GgufWordSplit> splits = {
      {"gpt-2", {kGpt2}},
      {"smollm", {kDigit, kGpt2}},
      {"llama-bpe", {kLlama3}, false, true, true},
      {"smaug-bpe", {kLlama3}},
      {"glm4", {kLlama3}, false, true},
      {"qwen2", {kQwen2}, true},
      {"qwen35", {kQwen35}},
      {"gpt-4o", {kGpt4o}},
      {"tekken", {kTekken}, false, true, true},
      {"deepseek-v3", {kUpToThreeDigits, kIdeographsAndKana, kDeepSeek3}},
      {"deepseek-coder",
       {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", kDigit}},
      {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}},
      {"bloom", {kBloom}},
      {"viking", {kBloom, kDigit}},
      {"superbpe", {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}},
      {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}},
  };
  return splits;
}

/// Further names that llama.cpp has for a split.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {{"llama3", "llama-bpe"},
                                                                         {"llama-v3", "llama-bpe"},
                                                                         {"falcon3", "llama-bpe"},
                                                                         {"falcon-h1", "llama-bpe"},
                                                                         {"pixtral", "llama-bpe"},
                                                                         {"midm-2.0", "llama-bpe"},
                                                                         {"lfm2", "llama-bpe"},
                                                                         {"dbrx", "smaug-bpe"},
                                                                         {"chatglm-bpe", "smaug-bpe"},
                                                                         {"glm5", "glm4"},
                                                                         {"phi-2", "gpt-2"},
                                                                         {"mpt", "gpt-2"},
                                                                         {"olmo", "gpt-2"},
                                                                         {"jais", "gpt-2"},
                                                                         {"exaone4", "gpt-2"},
                                                                         {"trillion", "gpt-2"},
                                                                         {"granite-docling", "gpt-2"},
                                                                         {"gigachat", "gpt-2"},
                                                                         {"a.x-4.0", "gpt-2"},
                                                                         {"mellum", "gpt-2"},
                                                                         {"modern-bert", "gpt-2"},
                                                                         {"starcoder", "smollm"},
                                                                         {"refact", "smollm"},
                                                                         {"command-r", "smollm"},
                                                                         {"codeshell", "smollm"},
                                                                         {"exaone", "smollm"},
                                                                         {"minerva-7b", "smollm"},
                                                                         {"mellum2", "smollm"},
                                                                         {"stablelm2", "qwen2"},
                                                                         {"megrez", "qwen2"},
                                                                         {"hunyuan", "qwen2"},
                                                                         {"solar-open", "qwen2"},
                                                                         {"deepseek-r1-qwen", "qwen2"},
                                                                         {"grok-2", "qwen2"},
                                                                         {"hunyuan-dense", "deepseek-v3"},
                                                                         {"joyai-llm", "deepseek-v3"},
                                                                         {"llama4", "gpt-4o"},
                                                                         {"kanana2", "gpt-4o"},
                                                                         {"minimax-m2", "gpt-4o"},
                                                                         {"poro-chat", "bloom"},
                                                                         {"gpt3-finnish", "bloom"}};

Json byte_level(bool splits) {
  Json made = Json::object();
  made["type"] = "ByteLevel";
  made["add_prefix_space"] = false;
  made["trim_offsets"] = true;
  made["use_regex"] = splits;
  return made;
}

/// Reads a section "pre_tokenizer" as the patterns that split one after the other.
class PatternsOf {
 public:
  /// Nothing, with reason(), where the section does something else.
  std::optional<std::vector<std::string>> read(const Json& section) {
    take(section);
    if (reason_.empty() && !has_bytes_) reason_ = "it does not end with ByteLevel";
    return reason_.empty() ? std::optional(patterns_) : std::nullopt;
  }
  const std::string& reason() const { return reason_; }

 private:
  void fail(const std::string& reason) {
    if (reason_.empty()) reason_ = reason;
  }

  static bool flag(const Json& section, const char* key, bool otherwise) {
    const Json* found = section.find(key);
    return found != nullptr && found->is_bool() ? found->as_bool() : otherwise;
  }
  static std::string text(const Json& section, const char* key) {
    const Json* found = section.find(key);
    return found != nullptr && found->is_string() ? found->as_string() : "";
  }

  void take(const Json& section) {
    const std::string type = text(section, "type");
    if (type == "Sequence") {
      const Json* steps = section.find("pretokenizers");
      for (std::size_t i = 0; steps != nullptr && i < steps->size(); ++i) take(steps->as_array()[i]);
    } else if (has_bytes_) {
      fail("a step follows ByteLevel");
    } else if (type == "ByteLevel") {
      has_bytes_ = true;
      if (flag(section, "add_prefix_space", true)) fail("ByteLevel puts a space before a text (add_prefix_space)");
      if (flag(section, "use_regex", true)) patterns_.push_back(kGpt2);
    } else if (type == "Digits" && flag(section, "individual_digits", false)) {
      patterns_.push_back(kDigit);
    } else if (type == "Split") {
      take_split(section);
    } else {
      fail("it has a step of the type '" + type + "'");
    }
  }

  void take_split(const Json& section) {
    const Json* pattern = section.find("pattern");
    const std::string regex = pattern ? text(*pattern, "Regex") : "";
    const std::string behavior = text(section, "behavior");
    const bool inverts = flag(section, "invert", false);
    if (regex.empty()) return fail("it splits at a text and not at a pattern");
    // A pattern that leaves no text out keeps all parts in both forms.
    if ((behavior == "Isolated" && !inverts) || (behavior == "Removed" && inverts)) return patterns_.push_back(regex);
    fail("a step Split has the behavior " + behavior);
  }

  std::vector<std::string> patterns_;
  bool has_bytes_ = false;
  std::string reason_;
};

}  // namespace

const GgufWordSplit* find_word_split(std::string_view name) {
  const auto other = std::find_if(std::begin(kOtherNames), std::end(kOtherNames),
                                  [&](const auto& names) { return names.first == name; });
  if (other != std::end(kOtherNames)) name = other->second;
  const auto found =
      std::find_if(all_splits().begin(), all_splits().end(), [&](const auto& split) { return split.name == name; });
  return found == all_splits().end() ? nullptr : &*found;
}

std::string known_word_splits() {
  std::vector<std::string_view> names;
  for (const GgufWordSplit& split : all_splits()) names.push_back(split.name);
  for (const auto& [name, same] : kOtherNames) names.push_back(name);
  std::sort(names.begin(), names.end());
  std::string list;
  for (const std::string_view name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

const GgufWordSplit* word_split_of(const Json& pre_tokenizer, bool whole_words, std::string& reason) {
  PatternsOf reading;
  const auto patterns = reading.read(pre_tokenizer);
  if (!patterns) {
    reason = "of its pre_tokenizer llama.cpp has no equal: " + reading.reason();
    return nullptr;
  }
  for (const GgufWordSplit& split : all_splits()) {
    const bool fits = split.whole_words == whole_words &&
                      std::equal(split.patterns.begin(), split.patterns.end(), patterns->begin(), patterns->end());
    if (fits) return &split;
  }
  reason = "llama.cpp has no name for its patterns:";
  for (const std::string& pattern : *patterns) reason += " " + pattern;
  if (whole_words) reason += ", with ignore_merges";
  return nullptr;
}

Json pre_tokenizer_of(const GgufWordSplit& split) {
  Json::Array steps;
  for (const char* pattern : split.patterns) {
    Json step = Json::object();
    step["type"] = "Split";
    step["pattern"]["Regex"] = pattern;
    step["behavior"] = "Isolated";
    step["invert"] = false;
    steps.push_back(std::move(step));
  }
  // GPT-2's own pattern is ByteLevel's.
  const bool has_own = std::string_view(split.patterns.back()) == kGpt2;
  if (has_own) steps.pop_back();
  steps.push_back(byte_level(has_own));
  if (steps.size() == 1) return steps[0];
  Json made = Json::object();
  made["type"] = "Sequence";
  made["pretokenizers"] = std::move(steps);
  return made;
}

}  // namespace capstan
