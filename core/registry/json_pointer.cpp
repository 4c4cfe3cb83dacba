#include "core/registry/json_pointer.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>

namespace capstan {
namespace {

std::string unescaped(std::string_view token, std::string_view pointer) {
  std::string text;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] != '~') {
      text += token[i];
      continue;
    }
    const char code = i + 1 < token.size() ? token[++i] : '\0';
    if (code != '0' && code != '1') {
      throw std::invalid_argument("'" + std::string(pointer) +
                                  "' is not a JSON pointer: '~' must be followed by 0 or 1.");
    }
    text += code == '0' ? '~' : '/';
  }
  return text;
}

std::optional<std::size_t> array_index(std::string_view token) {
  if (token.empty() || (token.size() > 1 && token.front() == '0')) return std::nullopt;
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), index);
  if (error != std::errc() || end != token.data() + token.size()) return std::nullopt;
  return index;
}

}  // namespace

const Json* resolve_pointer(const Json& document, std::string_view pointer) {
  if (!pointer.empty() && pointer.front() != '/') {
    throw std::invalid_argument("'" + std::string(pointer) + "' is not a JSON pointer: it must begin with '/'.");
  }
  const Json* value = &document;
  std::string_view rest = pointer;
  while (!rest.empty() && value) {
    rest.remove_prefix(1);
    const auto end = std::min(rest.find('/'), rest.size());
    const std::string token = unescaped(rest.substr(0, end), pointer);
    rest.remove_prefix(end);
    if (value->is_array()) {
      const auto index = array_index(token);
      value = index && *index < value->size() ? &value->as_array()[*index] : nullptr;
    } else {
      value = value->find(token);
    }
  }
  return value;
}

}  // namespace capstan
