#include "core/text/tokenizer/document_encoder.hpp"

#include <algorithm>
#include <utility>

namespace capstan::tokenizer {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

bool is_line_break(std::string_view text, std::size_t at) {
  return text[at - 1] == '\n' && text[at] != '\n' && text[at] != '\r' && text[at] != ' ' && text[at] != '\t';
}

bool is_space(std::string_view text, std::size_t at) {
  return text[at] == ' ' && text[at - 1] != ' ' && text[at - 1] != '\n' && text[at - 1] != '\t';
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, Take take, Sizes sizes)
    : encoder_(tokenizer), take_(std::move(take)), sizes_(sizes), wanted_(sizes.window + 2 * sizes.context) {}

void DocumentEncoder::append(std::string_view text) {
  while (!text.empty()) {
    const std::size_t missing = text_.size() < wanted_ ? wanted_ - text_.size() : 1;
    std::size_t count = std::min(missing, text.size());
    while (count < text.size() && !begins_character(text[count])) ++count;
    text_ += text.substr(0, count);
    text.remove_prefix(count);
    if (text_.size() < wanted_) continue;
    wanted_ = take_window() ? sizes_.window + 2 * sizes_.context : text_.size() + sizes_.window;
  }
}

void DocumentEncoder::finish() {
  hand_on(text_);
  text_.clear();
  context_ = context_ids_ = searched_ = 0;
  wanted_ = sizes_.window + 2 * sizes_.context;
}

std::size_t DocumentEncoder::context_before(std::size_t at) const {
  std::size_t begin = at > sizes_.context ? at - sizes_.context : 0;
  while (!begins_character(text_[begin])) ++begin;
  return begin;
}

bool DocumentEncoder::can_cut(std::size_t at) {
  const std::size_t begin = context_before(at);
  std::size_t end = at + sizes_.context;
  while (!begins_character(text_[end])) --end;
  const std::string_view text = text_;
  ids_.clear();
  whole_.clear();
  encoder_.encode(text.substr(begin, at - begin), ids_);
  encoder_.encode(text.substr(begin, end - begin), whole_);
  return ids_.size() <= whole_.size() && std::equal(ids_.begin(), ids_.end(), whole_.begin());
}

bool DocumentEncoder::take_window() {
  constexpr int kMostTries = 16;
  const std::size_t last = text_.size() - sizes_.context - 1;
  const std::size_t first = std::max(context_ + sizes_.window / 2, searched_);
  for (const auto is_candidate : {is_line_break, is_space}) {
    int tries = 0;
    for (std::size_t at = last; at > first && tries < kMostTries; --at) {
      if (!is_candidate(text_, at)) continue;
      ++tries;
      if (!can_cut(at)) continue;
      const std::size_t next_ids = ids_.size(), begin = context_before(at);
      hand_on(std::string_view(text_).substr(0, at));
      text_.erase(0, begin);
      context_ = at - begin;
      context_ids_ = next_ids;
      searched_ = 0;
      return true;
    }
  }
  searched_ = last;
  return false;
}

void DocumentEncoder::hand_on(std::string_view text) {
  ids_.clear();
  encoder_.encode(text, ids_);
  take_(std::span<const Id>(ids_).subspan(std::min(context_ids_, ids_.size())));
}

}  // namespace capstan::tokenizer
