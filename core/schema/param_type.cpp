#include "core/schema/param_type.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "core/text/nearest.hpp"

namespace capstan {
namespace {

using Type = KeySpec::Type;

const std::vector<std::pair<std::string, Type>> kTypes = {
    {"boolean", Type::kBoolean}, {"integer", Type::kInteger}, {"number", Type::kNumber}, {"string", Type::kString},
    {"path", Type::kPath},       {"array", Type::kArray},     {"object", Type::kObject}, {"any", Type::kAny}};

Type find_type(const std::string& name, const std::string& whole) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& type) { return type.first == name; });
  if (found != kTypes.end()) return found->second;
  throw std::invalid_argument("'" + whole + "' is not a type." + suggestion(name, param_type_names()));
}

const std::string& type_name(Type type) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& known) { return known.second == type; })->first;
}

}  // namespace

std::vector<std::string> param_type_names() {
  std::vector<std::string> names;
  for (const auto& [name, type] : kTypes) names.push_back(name);
  return names;
}

ParamType parse_param_type(const std::string& text) {
  const auto bracket = text.find('[');
  if (bracket == std::string::npos) return {.type = find_type(text, text)};
  ParamType type{.type = Type::kArray, .element = find_type(text.substr(0, bracket), text)};
  if (text == text.substr(0, bracket) + "[]") return type;
  std::size_t length = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data() + bracket + 1, end, length);
  if (error != std::errc() || end - last != 1 || *last != ']') {
    throw std::invalid_argument("'" + text +
                                "' is not a type: a list is written 'number[]', or 'number[2]' with its length.");
  }
  type.length = length;
  return type;
}

std::string param_type_text(const ParamType& type) {
  if (type.type != Type::kArray || (type.element == Type::kAny && !type.length)) return type_name(type.type);
  return type_name(type.element) + "[" + (type.length ? std::to_string(*type.length) : "") + "]";
}

}  // namespace capstan
