#pragma once

#include <optional>
#include <string>

#include "core/pretrained/model_text.hpp"

namespace capstan {

/// The text side of the model whose weights a checkpoint (DIR or DIR:TAG) holds, or where that is empty a folder of
/// transformers, a GGUF or a safetensors file; nothing where no tokenizer came with them. Throws RuntimeFault.
std::optional<ModelText> text_of_weights(const std::string& checkpoint, const std::string& weights);

}  // namespace capstan
