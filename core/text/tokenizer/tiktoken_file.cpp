#include "core/text/tokenizer/tiktoken_file.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/text/base64.hpp"
#include "core/text/tokenizer/byte_characters.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/word_patterns.hpp"

namespace capstan::tokenizer {
namespace {

struct KnownTiktoken {
  const char* name;
  const char* pattern;
  std::vector<std::pair<std::int64_t, const char*>> special;
};

constexpr const char* kQwen = "qwen";
constexpr std::int64_t kFirstOfQwen = 151646, kExtrasOfQwen = 205;  // <|extra_0|>

const std::vector<KnownTiktoken>& known_kinds() {
  static const std::vector<KnownTiktoken> kinds = {
      {"cl100k_base",
       word_patterns::kLlama3,
       {{100257, "<|endoftext|>"},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}}},
      {"gpt2", word_patterns::kGpt2, {{50256, "<|endoftext|>"}}},
      {"llama3", word_patterns::kLlama3, {}},
      {"o200k_base", word_patterns::kGpt4o, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
      {"p50k_base", word_patterns::kGpt2, {{50256, "<|endoftext|>"}}},
      {kQwen, word_patterns::kQwen2, {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}},
      {"r50k_base", word_patterns::kGpt2, {{50256, "<|endoftext|>"}}},
  };
  return kinds;
}

/// A line "cmFuaw== 17".
std::optional<std::pair<std::string, std::int64_t>> read_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return std::nullopt;
  const std::string_view number = line.substr(space + 1);
  std::int64_t rank = -1;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), rank);
  auto bytes = decode_base64(line.substr(0, space));
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() || rank < 0 || !bytes || bytes->empty()) {
    return std::nullopt;
  }
  return std::pair(std::move(*bytes), rank);
}

using Ranks = std::unordered_map<std::string, std::int64_t>;

Ranks read_ranks(std::string_view bytes, const std::string& where) {
  Ranks ranks;
  std::set<std::int64_t> seen;
  for (std::size_t number = 1; !bytes.empty(); ++number) {
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.empty()) continue;
    const std::string of = where + ":" + std::to_string(number) + ": ";
    auto read = read_line(line);
    if (!read) throw RuntimeFault(of + "must be a token in base64, a space and its rank.");
    if (read->second > Field::kLargestId) throw RuntimeFault(of + "has a rank above 9,999,999.");
    if (read->first.size() > Field::kLongestToken) throw RuntimeFault(of + "has a token longer than 2,000 bytes.");
    if (!seen.insert(read->second).second) {
      throw RuntimeFault(of + "has the rank " + std::to_string(read->second) + ", which stands above too.");
    }
    if (!ranks.emplace(std::move(read->first), read->second).second) {
      throw RuntimeFault(of + "has a token that stands above too.");
    }
  }
  return ranks;
}

/// Every way to cut a token into two, by the rank of the token, the left and the right part.
Json::Array merges_of(const Ranks& ranks) {
  struct Merge {
    std::int64_t rank, left, right;
    const std::string* token;
    std::size_t cut;
  };
  std::vector<Merge> merges;
  for (const auto& [token, rank] : ranks) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) {
        merges.push_back({rank, left->second, right->second, &token, cut});
      }
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.rank, a.left, a.right) < std::tuple(b.rank, b.left, b.right);
  });
  Json::Array pairs;
  pairs.reserve(merges.size());
  for (const Merge& merge : merges) {
    pairs.push_back(Json(Json::Array{Json(bytes_to_characters(merge.token->substr(0, merge.cut))),
                                     Json(bytes_to_characters(merge.token->substr(merge.cut)))}));
  }
  return pairs;
}

Json byte_level() {
  Json made = Json::object();
  made["type"] = "ByteLevel";
  made["add_prefix_space"] = false;
  made["trim_offsets"] = true;
  made["use_regex"] = false;
  return made;
}

Json pre_tokenizer_of(const std::string& pattern) {
  Json split = Json::object();
  split["type"] = "Split";
  split["pattern"]["Regex"] = pattern;
  split["behavior"] = "Isolated";
  split["invert"] = false;
  Json made = Json::object();
  made["type"] = "Sequence";
  made["pretokenizers"] = Json::Array{std::move(split), byte_level()};
  return made;
}

Json::Array added_tokens_of(const TiktokenKind& kind, const Json::Object& vocabulary, const std::string& where) {
  std::unordered_map<std::int64_t, std::string_view> taken;
  for (const auto& [text, id] : vocabulary) taken.emplace(id.as_integer(), text);
  Json::Array added;
  for (const auto& [id, text] : kind.special) {
    if (taken.contains(id)) {
      throw RuntimeFault(where + ": the special token '" + text + "' has the id " + std::to_string(id) +
                         ", which is the rank of another token.");
    }
    Json token = Json::object();
    token["id"] = id;
    token["content"] = text;
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
    token["special"] = true;
    added.push_back(std::move(token));
  }
  return added;
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  return line.size() < 1000 && read_line(line).has_value();
}

std::optional<TiktokenKind> known_tiktoken(std::string_view name) {
  const auto& kinds = known_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return name == kind.name; });
  if (found == kinds.end()) return std::nullopt;
  TiktokenKind kind{found->pattern, {}};
  for (const auto& [id, text] : found->special) kind.special.emplace(id, text);
  for (std::int64_t i = 0; name == kQwen && i < kExtrasOfQwen; ++i) {
    kind.special.emplace(kFirstOfQwen + i, "<|extra_" + std::to_string(i) + "|>");
  }
  return kind;
}

std::string known_tiktoken_names() {
  std::string names;
  for (const KnownTiktoken& kind : known_kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  return names;
}

Json tokenizer_of_tiktoken(std::string_view bytes, const TiktokenKind& kind, const std::string& where) {
  const Ranks ranks = read_ranks(bytes, where);
  Json::Object vocabulary;
  for (const auto& [token, rank] : ranks) vocabulary.emplace_back(bytes_to_characters(token), rank);
  Json made = Json::object();
  made["version"] = "1.0";
  made["added_tokens"] = added_tokens_of(kind, vocabulary, where);
  made["normalizer"] = nullptr;
  made["pre_tokenizer"] = pre_tokenizer_of(kind.pattern);
  made["post_processor"] = nullptr;
  made["decoder"] = byte_level();
  Json model = Json::object();
  model["type"] = "BPE";
  model["ignore_merges"] = true;  // tiktoken looks a whole word up first
  model["vocab"] = std::move(vocabulary);
  for (int byte = 0; byte < 256; ++byte) {
    if (ranks.contains(std::string(1, static_cast<char>(byte)))) continue;
    throw RuntimeFault(where + ": it has no token for the byte " + std::to_string(byte) +
                       ", and ranks of tiktoken have one for each byte.");
  }
  model["merges"] = merges_of(ranks);
  made["model"] = std::move(model);
  return made;
}

}  // namespace capstan::tokenizer
