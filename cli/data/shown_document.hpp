#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// How documents are shown on a terminal or in a file.
struct DocumentView {
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: numbers
  bool is_bytes = false;                            // tokens are the bytes of a text
  bool has_colour = false;
};

/// The text of a document's tokens, or their numbers; `hidden` more tokens are not shown. The tokens that the loss
/// counts, where `counts` is not empty, are green, or without colour between ⟦ and ⟧. Control characters but for tabs
/// and line breaks are written as \x1b.
std::string document_text(std::span<const std::int64_t> tokens, const std::vector<bool>& counts, std::int64_t hidden,
                          const DocumentView& view);

}  // namespace capstan::cli
