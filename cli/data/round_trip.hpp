#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// Decodes tokens as they are made, and compares them with the text that they were made of.
class RoundTrip {
 public:
  explicit RoundTrip(const tokenizer::Tokenizer& tokenizer)
      : decoder_(tokenizer, tokenizer::DecodeStream::Special::kKeep) {}

  /// The next part of the document's text, before the tokens of that part.
  void expect(std::string_view text);
  void take(std::span<const tokenizer::Id> ids);
  /// `name` of the document that ends here.
  void end_document(const std::string& name);

  std::int64_t different() const { return different_; }
  /// "a.txt: byte 12: the text has 'B', and its tokens decode to 'b'."; of the first document that differs.
  const std::string& first_difference() const { return first_difference_; }

 private:
  void compare(const std::string& decoded);

  tokenizer::DecodeStream decoder_;
  std::string expected_;        // behind what was decoded
  std::size_t at_ = 0;          // how much of it was decoded
  std::uint64_t done_ = 0;      // bytes of the document before expected_
  std::string found_;           // the difference in this document; empty: none so far
  std::int64_t different_ = 0;  // documents
  std::string first_difference_;
};

}  // namespace capstan::cli
