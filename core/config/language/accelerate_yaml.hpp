#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace capstan {

/// Returns a sentence for a YAML file of Hugging Face accelerate, with the configuration to write in its place. Returns
/// nothing for any other text.
std::optional<std::string> accelerate_yaml(std::string_view text);

}  // namespace capstan
