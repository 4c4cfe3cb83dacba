#include "core/text/tokenizer/document_encoder.hpp"

#include <algorithm>
#include <utility>

namespace capstan::tokenizer {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, Take take, Sizes sizes)
    : encoder_(tokenizer),
      take_(std::move(take)),
      sizes_(sizes),
      cut_(encoder_, sizes.context),
      wanted_(sizes.window + 2 * sizes.context) {}

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

void DocumentEncoder::begin_behind(std::string_view context) {
  text_ = context;
  context_ = context.size();
  ids_.clear();
  encoder_.encode(text_, ids_);
  context_ids_ = ids_.size();
}

bool DocumentEncoder::take_window() {
  const std::size_t last = text_.size() - sizes_.context - 1;
  const std::size_t first = std::max(context_ + sizes_.window / 2, searched_) + 1;
  const auto place = cut_.last_place(text_, first, last);
  if (!place) {
    searched_ = last;
    return false;
  }
  const std::size_t next_ids = cut_.tokens_of_context(), begin = cut_.context_before(text_, *place);
  hand_on(std::string_view(text_).substr(0, *place));
  text_.erase(0, begin);
  context_ = *place - begin;
  context_ids_ = next_ids;
  searched_ = 0;
  return true;
}

void DocumentEncoder::hand_on(std::string_view text) {
  ids_.clear();
  encoder_.encode(text, ids_);
  take_(std::span<const Id>(ids_).subspan(std::min(context_ids_, ids_.size())));
}

}  // namespace capstan::tokenizer
