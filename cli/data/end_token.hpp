#pragma once

#include <string>

#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// The token that ends documents. `given`: its id, or its text where that is not a number; "none" for none, or empty
/// for eos_token of tokenizer_config.json beside the tokenizer's file. kNoId for none. Throws UsageError where no such
/// token is known.
tokenizer::Id end_token(const tokenizer::Tokenizer& tokenizer, const std::string& given);

}  // namespace capstan::cli
