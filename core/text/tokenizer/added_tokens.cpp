#include "core/text/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <deque>

#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

/// Where the white space begins that `text` ends with.
std::size_t begin_of_space_at_end(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && is_white_space(character_at(text, last_character(text.substr(0, begin))))) {
    begin = last_character(text.substr(0, begin));
  }
  return begin;
}

/// Where the white space ends that goes on from `at`.
std::size_t end_of_space(std::string_view text, std::size_t at) {
  while (at < text.size() && is_white_space(character_at(text, at))) at += length_of(text[at]);
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const Field& file, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  if (const auto section = file.find("added_tokens")) {
    for (const Field& one : section->items()) {
      const Field id = one.at("id");
      Token token{.text = one.at("content").text(),
                  .id = id.id(),
                  .is_special = one.flag("special", false),
                  .alone = one.flag("single_word", false),
                  .takes_left = one.flag("lstrip", false),
                  .takes_right = one.flag("rstrip", false),
                  .in_normalized = one.flag("normalized", !one.flag("special", false))};
      if (token.text.empty()) one.at("content").fail("must not be empty.");
      if (const std::string* other = vocabulary.text(token.id); other != nullptr && *other != token.text) {
        id.fail("'" + token.text + "' has id " + std::to_string(token.id) + ", which model.vocab has for '" + *other +
                "'.");
      }
      if (const Id other = vocabulary.find(token.text); other != kNoId && other != token.id) {
        id.fail("'" + token.text + "' has id " + std::to_string(token.id) + ", and model.vocab has it as " +
                std::to_string(other) + ".");
      }
      if (!by_id_.emplace(token.id, tokens_.size()).second) {
        id.fail("id " + std::to_string(token.id) + " stands for '" + tokens_[by_id_[token.id]].text + "' and for '" +
                token.text + "'.");
      }
      end_ = std::max(end_, token.id + 1);
      tokens_.push_back(std::move(token));
    }
  }
  plain_.emplace(trie_of(false, nullptr));
  normalized_.emplace(trie_of(true, normalizer));
}

ByteTrie AddedTokens::trie_of(bool normalized, const Normalizer* normalizer) const {
  std::deque<std::string> texts;
  std::vector<ByteTrie::Entry> entries;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].in_normalized != normalized) continue;
    std::string& text = texts.emplace_back(tokens_[i].text);
    if (normalizer != nullptr) normalizer->apply(text);
    if (!text.empty()) entries.emplace_back(text, static_cast<std::int32_t>(i));
  }
  return ByteTrie(std::move(entries));
}

bool AddedTokens::is_part_of_word(std::string_view text, std::size_t begin, std::size_t end) const {
  return (begin > 0 && is_word(character_at(text, last_character(text.substr(0, begin))))) ||
         (end < text.size() && is_word(character_at(text, end)));
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Part>& parts) const {
  const ByteTrie& trie = normalized ? *normalized_ : *plain_;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t size = 0;
    std::int32_t found = -1;
    trie.each_prefix(text, at, [&](std::size_t of, std::int32_t token) {
      size = of;
      found = token;
    });
    if (found < 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_[static_cast<std::size_t>(found)];
    std::size_t begin = at, end = at + size;
    at = end;
    if (token.alone && is_part_of_word(text, begin, end)) continue;
    if (token.takes_left) begin = std::max(begin_of_space_at_end(text.substr(0, begin)), done);
    if (token.takes_right) end = end_of_space(text, end);
    if (begin > done) parts.push_back({text.substr(done, begin - done), kNoId});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), kNoId});
}

const std::string* AddedTokens::text(Id id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second].text;
}

Id AddedTokens::find(std::string_view text) const {
  const auto found =
      std::find_if(tokens_.begin(), tokens_.end(), [&](const Token& token) { return token.text == text; });
  return found == tokens_.end() ? kNoId : found->id;
}

bool AddedTokens::takes_space() const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [](const Token& token) { return token.takes_left || token.takes_right; });
}

bool AddedTokens::is_special(Id id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() && tokens_[found->second].is_special;
}

}  // namespace capstan::tokenizer
