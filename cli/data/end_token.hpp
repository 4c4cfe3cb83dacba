#pragma once

#include <string>

#include "core/pretrained/model_text.hpp"

namespace capstan::cli {

/// The token that ends documents. `given`: its id, or its text where that is not a number; "none" for none, or empty
/// for eos_token of tokenizer_config.json, or of a GGUF file. kNoId for none. Throws UsageError where no such
/// token is known.
tokenizer::Id end_token(const ModelText& text, const std::string& given);

}  // namespace capstan::cli
