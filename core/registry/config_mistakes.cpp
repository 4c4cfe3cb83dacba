#include "core/registry/config_mistakes.hpp"

#include <algorithm>

namespace capstan {

bool has_config_mistake(std::string_view text) { return text.find(kConfigMistakeMark) != std::string_view::npos; }

std::string config_mistakes_of(std::string_view text) {
  std::string found;
  text.remove_prefix(std::min(text.find(kConfigMistakeMark), text.size()));
  for (std::size_t mark = 0; (mark = text.find(kConfigMistakeMark)) != std::string_view::npos;) {
    found += text.substr(0, mark);
    text.remove_prefix(mark + kConfigMistakeMark.size());
  }
  return found.append(text);
}

void ConfigMistakes::add(const std::string& text) { text_ += (text_.empty() ? "" : "\n") + text; }

void ConfigMistakes::throw_if_any() const {
  if (!empty()) throw ConfigError(text_);
}

}  // namespace capstan
