#include "core/text/tokenizer/document_cut.hpp"

#include <algorithm>

#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

constexpr int kMostTries = 16;

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

bool is_line_break(std::string_view text, std::size_t at) {
  return text[at - 1] == '\n' && text[at] != '\n' && text[at] != '\r' && text[at] != ' ' && text[at] != '\t';
}

bool is_space(std::string_view text, std::size_t at) {
  return text[at] == ' ' && text[at - 1] != ' ' && text[at - 1] != '\n' && text[at - 1] != '\t';
}

}  // namespace

std::size_t DocumentCut::context_before(std::string_view text, std::size_t place) const {
  std::size_t begin = place > context_ ? place - context_ : 0;
  while (!begins_character(text[begin])) ++begin;
  return begin;
}

bool DocumentCut::can_cut(std::string_view text, std::size_t place) {
  const std::size_t begin = context_before(text, place);
  std::size_t end = place + context_;
  while (!begins_character(text[end])) --end;
  const std::string_view around = text.substr(begin, end - begin);
  if (first_invalid_byte(around)) return false;
  ids_.clear();
  whole_.clear();
  encoder_.encode(around.substr(0, place - begin), ids_);
  encoder_.encode(around, whole_);
  return ids_.size() <= whole_.size() && std::equal(ids_.begin(), ids_.end(), whole_.begin());
}

template <class Next>
std::optional<std::size_t> DocumentCut::search(std::string_view text, std::size_t from, std::size_t count, Next next) {
  for (const auto is_candidate : {is_line_break, is_space}) {
    int tries = 0;
    std::size_t place = from;
    for (std::size_t i = 0; i < count && tries < kMostTries; ++i, place = next(place)) {
      if (!is_candidate(text, place)) continue;
      ++tries;
      if (can_cut(text, place)) return place;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> DocumentCut::last_place(std::string_view text, std::size_t first, std::size_t last) {
  const std::size_t count = last < first ? 0 : last - first + 1;
  return search(text, last, count, [](std::size_t place) { return place - 1; });
}

std::optional<std::size_t> DocumentCut::first_place(std::string_view text, std::size_t first, std::size_t last) {
  const std::size_t count = last < first ? 0 : last - first + 1;
  return search(text, first, count, [](std::size_t place) { return place + 1; });
}

}  // namespace capstan::tokenizer
