#pragma once

#include <span>
#include <string>
#include <string_view>

#include "capstan/sdk/monitor.hpp"

namespace capstan::monitors {

/// Text as a JSON string, quotes included.
std::string json_string(std::string_view text);

/// {"step": 40, "samples": 320, "tag": "..", "prompt": "..", "text": ".."}, on one line.
std::string json_text(const sdk::Text& text);

/// Such objects in an array.
std::string json_texts(std::span<const sdk::Text> texts);

}  // namespace capstan::monitors
