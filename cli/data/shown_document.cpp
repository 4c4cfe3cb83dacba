#include "cli/data/shown_document.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text/numbers.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::cli {
namespace {

using tokenizer::DecodeStream;

/// Data must not move the cursor or ring the bell.
void append_visible(std::string_view text, std::string& out) {
  constexpr const char* kHex = "0123456789abcdef";
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters as well, of two bytes.
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (is_c1) byte = static_cast<unsigned char>(text[++i]);
    if (is_c1 || (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += text[i];
    }
  }
}

/// Writes pieces of text, with marks around those that the loss counts.
class Marks {
 public:
  explicit Marks(bool has_colour) : has_colour_(has_colour) {}

  void append(std::string_view text, bool counts) {
    if (text.empty()) return;
    if (counts != is_open_) toggle();
    append_visible(text, out_);
  }
  std::string finish() {
    if (is_open_) toggle();
    return std::move(out_);
  }

 private:
  void toggle() {
    is_open_ = !is_open_;
    out_ += has_colour_ ? (is_open_ ? "\x1b[32m" : "\x1b[0m") : (is_open_ ? "⟦" : "⟧");
  }

  bool has_colour_, is_open_ = false;
  std::string out_;
};

/// The text that tokens become one after another.
class Words {
 public:
  explicit Words(const DocumentView& view) : view_(view) {
    if (view.tokenizer) decoder_.emplace(*view.tokenizer, DecodeStream::Special::kKeep);
  }

  std::string next(std::int64_t token) {
    if (decoder_) {
      const bool is_id = token >= 0 && token <= std::numeric_limits<tokenizer::Id>::max();
      return decoder_->push(is_id ? static_cast<tokenizer::Id>(token) : tokenizer::kNoId);
    }
    if (!view_.is_bytes) {
      const bool is_first = std::exchange(is_first_, false);
      return (is_first ? "" : " ") + std::to_string(token);
    }
    // A character may have several bytes.
    held_ += static_cast<char>(token);
    const std::size_t whole = held_.size() - tokenizer::unfinished_bytes(held_);
    std::string text = tokenizer::replace_invalid(std::string_view(held_).substr(0, whole));
    held_.erase(0, whole);
    return text;
  }
  std::string rest() { return decoder_ ? decoder_->finish() : tokenizer::replace_invalid(held_); }

 private:
  const DocumentView& view_;
  std::optional<DecodeStream> decoder_;
  std::string held_;
  bool is_first_ = true;
};

}  // namespace

std::string document_text(std::span<const std::int64_t> tokens, const std::vector<bool>& counts, std::int64_t hidden,
                          const DocumentView& view) {
  Words words(view);
  Marks marks(view.has_colour);
  bool counts_last = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    counts_last = !counts.empty() && counts[i];
    marks.append(words.next(tokens[i]), counts_last);
  }
  marks.append(words.rest(), counts_last);
  std::string text = marks.finish();
  if (!text.ends_with('\n')) text += '\n';
  if (hidden > 0) text += "... and " + counted(hidden, view.is_bytes ? "more byte" : "more token") + "\n";
  return text;
}

}  // namespace capstan::cli
