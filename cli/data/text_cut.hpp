#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/data/input_pieces.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// A place at which a file of text is cut, so that the tokens of the parts are the tokens of the whole.
struct TextCut {
  std::uint64_t at = 0;
  std::string context;  // the text before it that a tokenizer may look back to
};

/// The cut that belongs to the begin `nominal` of a range: the first fitting place of the MiB behind it, or less where
/// ranges are shorter; nothing where none is there, and the text before goes on. A function of the file alone. Throws
/// RuntimeFault.
std::optional<TextCut> find_cut(const std::string& path, std::uint64_t nominal, std::uint64_t step,
                                const tokenizer::Tokenizer& tokenizer);

}  // namespace capstan::cli
