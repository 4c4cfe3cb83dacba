#include "cli/data/round_trip.hpp"

#include <algorithm>

#include "core/text/json.hpp"
#include "core/text/numbers.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::cli {
namespace {

/// A few characters from `at` on, as JSON writes them.
std::string excerpt(std::string_view text, std::size_t at) {
  constexpr std::size_t kExcerpt = 24;
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return Json(tokenizer::replace_invalid(text.substr(at, kExcerpt))).dump();
}

}  // namespace

void RoundTrip::expect(std::string_view text) {
  if (!found_.empty()) return;
  done_ += at_;
  expected_.erase(0, at_);
  at_ = 0;
  expected_ += text;
}

void RoundTrip::take(std::span<const tokenizer::Id> ids) {
  for (const tokenizer::Id id : ids) {
    if (!found_.empty()) return;
    compare(decoder_.push(id));
  }
}

void RoundTrip::compare(const std::string& decoded) {
  const std::string_view left = std::string_view(expected_).substr(at_);
  const auto same = std::mismatch(decoded.begin(), decoded.end(), left.begin(), left.end());
  const auto count = static_cast<std::size_t>(same.first - decoded.begin());
  if (count < decoded.size()) {
    found_ = "byte " + grouped(static_cast<std::int64_t>(done_ + at_ + count)) + ": the text has " +
             excerpt(left, count) + ", and its tokens decode to " + excerpt(decoded, count) + ".";
  }
  at_ += count;
}

void RoundTrip::end_document(const std::string& name) {
  const std::string rest = decoder_.finish();
  if (found_.empty()) compare(rest);
  if (found_.empty() && at_ < expected_.size()) {
    found_ = "byte " + grouped(static_cast<std::int64_t>(done_ + at_)) + ": the text has " + excerpt(expected_, at_) +
             ", and its tokens end.";
  }
  if (!found_.empty()) {
    if (different_++ == 0) first_difference_ = name + ": " + found_;
  }
  expected_.clear();
  found_.clear();
  at_ = 0;
  done_ = 0;
}

}  // namespace capstan::cli
