#pragma once

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/vocabulary.hpp"

namespace capstan::tokenizer {

/// Special tokens around those of a single text: the section "post_processor" of tokenizer.json.
struct SpecialTokens {
  Ids before, after;
};

/// The special tokens of a file. Throws RuntimeFault naming the kind and its place where it is not supported.
SpecialTokens special_tokens(const Field& file);

}  // namespace capstan::tokenizer
