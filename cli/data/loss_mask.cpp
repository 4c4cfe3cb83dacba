#include "cli/data/loss_mask.hpp"

#include <algorithm>

namespace capstan::cli {
namespace {

/// How many tokens the text before a byte has in common with the whole text, and whether these are all of it.
std::pair<std::size_t, bool> common_tokens(tokenizer::Encoder& encoder, const std::string& text, std::size_t end,
                                           const tokenizer::Ids& ids) {
  tokenizer::Ids before;
  encoder.encode(std::string_view(text).substr(0, end), before);
  const auto same = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
  return {static_cast<std::size_t>(same.first - before.begin()), same.first == before.end()};
}

}  // namespace

std::vector<bool> tokens_in_parts(tokenizer::Encoder& encoder, const std::string& text,
                                  const std::vector<std::pair<std::size_t, std::size_t>>& parts,
                                  const tokenizer::Ids& ids) {
  std::vector<bool> in_part(ids.size());
  for (const auto& [begin, end] : parts) {
    if (begin == end) continue;
    const std::size_t first = common_tokens(encoder, text, begin, ids).first;
    const auto [last, is_border] = common_tokens(encoder, text, end, ids);
    const std::size_t behind = std::min(is_border ? last : last + 1, ids.size());
    for (std::size_t i = first; i < behind; ++i) in_part[i] = true;
  }
  return in_part;
}

void LossMaskWriter::append(bool counts) {
  byte_ |= static_cast<unsigned>(counts) << bits_;
  if (++bits_ < 8) return;
  file_.put(static_cast<std::uint8_t>(byte_));
  byte_ = 0;
  bits_ = 0;
}

void LossMaskWriter::finish() {
  while (bits_ > 0) append(false);
  file_.sync();
  file_.rename();
}

}  // namespace capstan::cli
