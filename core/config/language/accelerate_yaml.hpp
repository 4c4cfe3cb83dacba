#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace capstan {

/// Where a text is a YAML file of Hugging Face accelerate: a sentence that says so, with the configuration to write in
/// its place. Nothing for any other text.
std::optional<std::string> accelerate_yaml(std::string_view text);

}  // namespace capstan
