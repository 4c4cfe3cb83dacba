#include "core/schema/value.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "core/schema/param_type.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

using Type = KeySpec::Type;

constexpr std::array<std::pair<std::string_view, Type>, 8> kTypeNames = {{{"boolean", Type::kBoolean},
                                                                          {"integer", Type::kInteger},
                                                                          {"number", Type::kNumber},
                                                                          {"string", Type::kString},
                                                                          {"path", Type::kPath},
                                                                          {"array", Type::kArray},
                                                                          {"object", Type::kObject},
                                                                          {"any", Type::kAny}}};

std::string_view type_name(Type type) {
  return std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const auto& name) { return name.second == type; })
      ->first;
}

std::string with_article(std::string_view type) {
  if (type == "array") return "a list";
  if (type == "boolean") return "true or false";
  if (type == "path") return "a path in quotes";
  if (type == "any") return "a value";
  const bool vowel = std::string_view("aeiou").find(type[0]) != std::string_view::npos;
  return (vowel ? "an " : "a ") + std::string(type);
}

/// "a list of integers", "an integer or \"auto\"".
std::string expectation(const KeySpec& spec) {
  if (spec.per_group) return "a number, or a list with one number a parameter group";
  std::string text = with_article(type_name(spec.type));
  if (spec.type == Type::kArray && spec.element != Type::kAny) {
    const std::string element = spec.element == Type::kArray ? "list" : std::string(type_name(spec.element));
    text = "a list of " + (spec.length ? std::to_string(*spec.length) + " " : "") + element + "s";
  }
  for (const Type other : spec.also) text += " or " + with_article(type_name(other));
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string read_as(const Json& given, const Json& value) {
  if (given.is_string())
    return "the string " + shown(given) + " is read as " + shown(value) + "; write it without quotes.";
  return shown(given) + " is read as " + shown(value) + "; write it so.";
}

Converted wrong_type(const Json& given, const KeySpec& spec) {
  return {std::nullopt, "must be " + expectation(spec) + ", got " + shown(given) + ".", ""};
}

std::optional<std::int64_t> whole(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::trunc(value) != value || value >= kLimit || value < -kLimit) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

Converted to_integer(const Json& given, const KeySpec& spec) {
  if (given.is_integer()) return {given, "", ""};
  std::optional<std::int64_t> value;
  if (given.is_number()) {
    value = whole(given.as_number());
    if (value) return {Json(*value), "", ""};
    if (std::trunc(given.as_number()) == given.as_number()) {
      return {std::nullopt, "must fit a 64-bit integer, got " + shown(given) + ".", ""};
    }
  } else if (given.is_string() && !spec.exact_type) {
    if (const auto number = parse_number(given.as_string())) value = whole(*number);
  } else if (given.is_bool() && !spec.exact_type) {
    value = given.as_bool() ? 1 : 0;
  }
  if (!value) return wrong_type(given, spec);
  return {Json(*value), "", read_as(given, Json(*value))};
}

Converted to_number(const Json& given, const KeySpec& spec) {
  if (given.is_number()) return {given, "", ""};
  std::optional<double> value;
  if (given.is_string() && !spec.exact_type) value = parse_number(given.as_string());
  if (given.is_bool() && !spec.exact_type) value = given.as_bool() ? 1 : 0;
  if (!value) return wrong_type(given, spec);
  return {Json(*value), "", read_as(given, Json(*value))};
}

Converted to_boolean(const Json& given, const KeySpec& spec) {
  if (given.is_bool()) return {given, "", ""};
  if (spec.exact_type) return wrong_type(given, spec);
  if (given.is_number() && (given.as_number() == 0 || given.as_number() == 1)) {
    return {Json(given.as_number() == 1), "", ""};
  }
  if (given.is_string()) {
    const std::string word = lower(given.as_string());
    for (const char* yes : {"true", "yes", "on", "t", "y", "1"}) {
      if (word == yes) return {Json(true), "", read_as(given, Json(true))};
    }
    for (const char* no : {"false", "no", "off", "f", "n", "0"}) {
      if (word == no) return {Json(false), "", read_as(given, Json(false))};
    }
  }
  return wrong_type(given, spec);
}

Converted to_scalar(const Json& given, Type type, const KeySpec& spec) {
  switch (type) {
    case Type::kBoolean:
      return to_boolean(given, spec);
    case Type::kInteger:
      return to_integer(given, spec);
    case Type::kNumber:
      return to_number(given, spec);
    case Type::kString:
    case Type::kPath:
      return given.is_string() ? Converted{given, "", ""} : wrong_type(given, spec);
    case Type::kArray:
      return given.is_array() ? Converted{given, "", ""} : wrong_type(given, spec);
    case Type::kObject:
      return given.is_object() ? Converted{given, "", ""} : wrong_type(given, spec);
    case Type::kAny:
      break;
  }
  return {given, "", ""};
}

Converted out_of_range(const Json& value, const KeySpec& spec) {
  return {std::nullopt, "must be " + range_text(spec) + ", got " + shown(value) + ".", ""};
}

Converted to_choice(Json value, const KeySpec& spec) {
  std::vector<std::string> names;
  for (const Json& choice : spec.choices) {
    if (choice == value) return {std::move(value), "", ""};
    if (choice.is_string() && value.is_string() && spec.any_case &&
        lower(choice.as_string()) == lower(value.as_string())) {
      return {choice, "", ""};
    }
    if (choice.is_string()) names.push_back(choice.as_string());
  }
  std::string list;
  for (const Json& choice : spec.choices) list += (list.empty() ? "" : ", ") + shown(choice);
  const std::string near = value.is_string() ? suggestion(value.as_string(), names) : "";
  return {std::nullopt,
          std::string("must be ") + (spec.choices.size() > 1 ? "one of " : "") + list + ", got " + shown(value) + "." +
              near,
          ""};
}

Converted check(Converted converted, const KeySpec& spec) {
  if (!converted.value) return converted;
  const Json& value = *converted.value;
  if (value.is_number()) {
    const double number = value.as_number();
    if (!std::isfinite(number)) return {std::nullopt, "must be a finite number, got " + shown(value) + ".", ""};
    const bool low = spec.minimum && (spec.exclusive_minimum ? number <= *spec.minimum : number < *spec.minimum);
    const bool high = spec.maximum && (spec.exclusive_maximum ? number >= *spec.maximum : number > *spec.maximum);
    if (low || high) return out_of_range(value, spec);
  }
  if (spec.choices.empty()) return converted;
  Converted chosen = to_choice(value, spec);
  chosen.remark = chosen.value ? converted.remark : "";
  return chosen;
}

Converted to_elements(const Json& given, Type element, const KeySpec& spec) {
  if (spec.length && given.size() != *spec.length) {
    return {std::nullopt, "must be " + expectation(spec) + ", got " + shown(given) + ".", ""};
  }
  Converted out{Json::array(), "", ""};
  KeySpec element_spec = spec;
  element_spec.type = element;
  element_spec.also.clear();
  element_spec.per_group = false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Json& item = given.as_array()[i];
    Converted one =
        item.is_null() ? wrong_type(item, element_spec) : check(to_scalar(item, element, element_spec), element_spec);
    if (!one.value) return {std::nullopt, "element " + std::to_string(i) + " " + one.fault, ""};
    if (!one.remark.empty()) out.remark = one.remark;
    if (item.offset()) one.value->set_offset(*item.offset());
    out.value->push_back(std::move(*one.value));
  }
  return out;
}

Converted convert_value(const Json& given, const KeySpec& spec) {
  if (spec.per_group && given.is_array()) return to_elements(given, Type::kNumber, spec);
  if (spec.type == Type::kArray) {
    if (given.is_array()) return to_elements(given, spec.element, spec);
    if (spec.one_or_many) return to_elements(Json(Json::Array{given}), spec.element, spec);
  }
  Converted converted = to_scalar(given, spec.type, spec);
  for (const Type other : spec.also) {
    if (converted.value) break;
    if (Converted alternative = to_scalar(given, other, spec); alternative.value && alternative.remark.empty()) {
      converted = std::move(alternative);
    }
  }
  return check(std::move(converted), spec);
}

std::string number_text(double value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

}  // namespace

Converted convert(const Json& given, const KeySpec& spec) {
  Converted converted = convert_value(given, spec);
  if (!converted.value && given.is_bool()) {
    // The range is checked on the number that a boolean stands for; the message shows what was written.
    const std::string as_number = "got " + std::to_string(given.as_bool() ? 1 : 0) + ".";
    if (converted.fault.ends_with(as_number))
      converted.fault.replace(converted.fault.size() - as_number.size(), as_number.size(), "got " + shown(given) + ".");
  }
  if (converted.value && given.offset()) converted.value->set_offset(*given.offset());
  return converted;
}

std::string shown(const Json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_object()) return "an object";
  if (value.is_number() && !value.is_integer()) return number_text(value.as_number());
  if (value.is_array()) {
    std::string list = "[";
    for (const Json& item : value.as_array()) {
      if (list.size() > kMost) return list + ", ...]";
      list += (list.size() > 1 ? ", " : "") + shown(item);
    }
    return list + "]";
  }
  std::string text = value.dump();
  if (text.size() > kMost) {
    std::size_t cut = kMost;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "...\"";
  }
  return text;
}

std::string range_text(const KeySpec& spec) {
  constexpr double kAllDigits = 1e15;  // what a person may still want to read digit by digit
  const auto bound_text = [&](const std::optional<double>& bound) -> std::string {
    if (!bound) return "";
    const bool whole = spec.type == KeySpec::Type::kInteger && std::abs(*bound) < kAllDigits;
    return whole ? std::to_string(static_cast<std::int64_t>(*bound)) : number_text(*bound);
  };
  const std::string low = bound_text(spec.minimum), high = bound_text(spec.maximum);
  if (spec.minimum && spec.maximum) {
    if (spec.exclusive_minimum && spec.exclusive_maximum) return "above " + low + " and below " + high;
    if (spec.exclusive_minimum) return "above " + low + " and at most " + high;
    if (spec.exclusive_maximum) return "at least " + low + " and below " + high;
    return "between " + low + " and " + high;
  }
  if (spec.minimum) return (spec.exclusive_minimum ? "above " : "at least ") + low;
  if (spec.maximum) return (spec.exclusive_maximum ? "below " : "at most ") + high;
  return "";
}

std::string type_text(const KeySpec& spec) {
  std::string text = param_type_text({.type = spec.type, .element = spec.element, .length = spec.length});
  if (spec.per_group) text += " | number[]";
  for (const Type other : spec.also) text += " | " + std::string(type_name(other));
  return text;
}

}  // namespace capstan
