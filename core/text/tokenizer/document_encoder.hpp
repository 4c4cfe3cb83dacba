#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/text/tokenizer/document_cut.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::tokenizer {

/// Tokenizes a document that comes in parts, in memory that does not grow with the document. One thread uses it; its
/// tokenizer outlives it.
///
/// The document is cut into windows, at the places of DocumentCut, so that the tokens are those of the whole document
/// for every tokenizer whose decisions depend on less than a context of text. A window without such a place grows until
/// it has one.
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
  /// The document goes on behind a place of DocumentCut, whose tokens before it were handed on by another encoder.
  /// `context`: the text before the place, from context_before() on. In place of the first append().
  void begin_behind(std::string_view context);
  /// The end of the document, or a place of DocumentCut: hands on the rest. The next append() begins another document.
  void finish();

 private:
  /// Hands on the tokens of the text up to a cut. Returns whether a cut was found.
  bool take_window();
  void hand_on(std::string_view text);

  Encoder encoder_;
  Take take_;
  Sizes sizes_;
  DocumentCut cut_;
  std::size_t wanted_;           // bytes of text before a cut is looked for
  std::string text_;             // the context, whose tokens were handed on, and what is not tokenized yet
  std::size_t context_ = 0;      // bytes of the context
  std::size_t context_ids_ = 0;  // tokens of the context by itself
  std::size_t searched_ = 0;     // up to where no cut was found
  Ids ids_;
};

}  // namespace capstan::tokenizer
