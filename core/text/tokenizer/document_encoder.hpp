#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::tokenizer {

/// Tokenizes a document that comes in parts, in memory that does not grow with the document. One thread uses it; its
/// tokenizer outlives it.
///
/// The document is cut into windows, behind line breaks or else before spaces. A cut is made only where the tokens of
/// the text before it are the first tokens of that text together with the text behind it, so that the tokens are those
/// of the whole document for every tokenizer whose decisions depend on less than a context of text. A window without
/// such a place grows until it has one.
class DocumentEncoder {
 public:
  using Take = std::function<void(std::span<const Id>)>;

  /// Sizes in bytes.
  struct Sizes {
    std::size_t window = 1 << 20, context = 4 << 10;
  };

  DocumentEncoder(const Tokenizer& tokenizer, Take take) : DocumentEncoder(tokenizer, std::move(take), Sizes{}) {}
  DocumentEncoder(const Tokenizer& tokenizer, Take take, Sizes sizes);

  /// The next part of the document: whole characters of UTF-8. Hands tokens on as they become certain. Throws what
  /// Encoder::encode() throws.
  void append(std::string_view text);
  /// The end of the document: hands on the rest. The next append() begins another document.
  void finish();

 private:
  /// Hands on the tokens of the text up to a cut. Returns whether a cut was found.
  bool take_window();
  bool can_cut(std::size_t at);
  std::size_t context_before(std::size_t at) const;
  void hand_on(std::string_view text);

  Encoder encoder_;
  Take take_;
  Sizes sizes_;
  std::size_t wanted_;           // bytes of text before a cut is looked for
  std::string text_;             // the context, whose tokens were handed on, and what is not tokenized yet
  std::size_t context_ = 0;      // bytes of the context
  std::size_t context_ids_ = 0;  // tokens of the context by itself
  std::size_t searched_ = 0;     // up to where no cut was found
  Ids ids_, whole_;
};

}  // namespace capstan::tokenizer
