#include "json_text.hpp"

#include <cstdio>

namespace capstan::monitors {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_text(const sdk::Text& text) {
  return "{\"step\": " + std::to_string(text.step) + ", \"samples\": " + std::to_string(text.x) +
         ", \"tag\": " + json_string(text.tag) + ", \"prompt\": " + json_string(text.prompt) +
         ", \"text\": " + json_string(text.text) + "}";
}

std::string json_texts(std::span<const sdk::Text> texts) {
  std::string out = "[";
  for (const sdk::Text& text : texts) out += (out.size() > 1 ? "," : "") + json_text(text);
  return out + "]";
}

}  // namespace capstan::monitors
