#pragma once

#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/pre_tokenizer.hpp"
#include "core/text/tokenizer/regex.hpp"

namespace capstan::tokenizer {

/// How the delimiters by which a piece is split are kept.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// The behavior that a field names. Throws RuntimeFault with its place.
SplitBehavior split_behavior(const Field& field);

/// Appends the parts of a piece; `delimiters` in order. `inverted`: the text between them are the delimiters. Parts
/// without text are left out.
void split_piece(const Piece& piece, const std::vector<Range>& delimiters, bool inverted, SplitBehavior behavior,
                 Pieces& out);

}  // namespace capstan::tokenizer
