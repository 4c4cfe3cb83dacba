#include "core/config/tools/key_schema.hpp"

#include <cctype>
#include <utility>

namespace capstan {
namespace {

using Type = KeySpec::Type;

Json object(std::initializer_list<Json::Member> members) { return Json(Json::Object(members)); }

Json any_of(Json::Array options) {
  if (options.size() == 1) return std::move(options.front());
  return object({{"anyOf", Json(std::move(options))}});
}

void add_range(const KeySpec& spec, Json& schema) {
  if (spec.minimum) schema[spec.exclusive_minimum ? "exclusiveMinimum" : "minimum"] = *spec.minimum;
  if (spec.maximum) schema[spec.exclusive_maximum ? "exclusiveMaximum" : "maximum"] = *spec.maximum;
}

bool in_range(const KeySpec& spec, double value) {
  if (spec.minimum && (spec.exclusive_minimum ? value <= *spec.minimum : value < *spec.minimum)) return false;
  return !(spec.maximum && (spec.exclusive_maximum ? value >= *spec.maximum : value > *spec.maximum));
}

/// Strings that are numbers; where only positive ones are allowed, zero is left out.
Json numeric_string(const KeySpec& spec, bool whole) {
  const bool positive = spec.minimum && *spec.minimum >= 0;
  const std::string sign = positive ? "" : "-?";
  const std::string digits =
      positive && (spec.exclusive_minimum || *spec.minimum > 0) && whole ? "0*[1-9][0-9]*" : "[0-9]+";
  const std::string rest = whole ? "(\\.0*)?([eE]\\+?[0-9]+)?" : "(\\.[0-9]*)?([eE][+-]?[0-9]+)?";
  return object({{"type", "string"}, {"pattern", "^" + sign + digits + rest + "$"}});
}

Json::Array number_options(const KeySpec& spec, bool whole) {
  Json number = object({{"type", whole ? "integer" : "number"}});
  add_range(spec, number);
  if (whole) number["maximum"] = spec.maximum ? *spec.maximum : 9223372036854775807.0;
  Json::Array options{std::move(number)};
  if (spec.exact_type) return options;
  options.push_back(numeric_string(spec, whole));
  for (const bool value : {true, false}) {
    if (in_range(spec, value ? 1 : 0)) options.push_back(object({{"const", value}}));
  }
  return options;
}

Json::Array boolean_options(const KeySpec& spec) {
  if (spec.exact_type) return {object({{"type", "boolean"}})};
  return {
      object({{"type", "boolean"}}), object({{"enum", Json(Json::Array{0, 1})}}),
      object(
          {{"type", "string"},
           {"pattern",
            "^([Tt][Rr][Uu][Ee]|[Yy][Ee][Ss]|[Oo][Nn]|[TtYy1]|[Ff][Aa][Ll][Ss][Ee]|[Nn][Oo]|[Oo][Ff][Ff]|[FfNn0])$"}})};
}

/// Words are an enum, from which editors complete; where the letter case is free, a pattern for each beside it.
Json::Array choice_options(const KeySpec& spec) {
  Json::Array options, words, patterns;
  for (const Json& choice : spec.choices) {
    if (choice.is_string()) {
      words.push_back(choice);
      if (spec.any_case)
        patterns.push_back(object({{"type", "string"}, {"pattern", any_case_pattern(choice.as_string())}}));
      continue;
    }
    options.push_back(object({{"const", choice}}));
    options.push_back(object({{"const", choice.dump()}}));
    if (spec.type == Type::kInteger && (choice == Json(0) || choice == Json(1))) {
      options.push_back(object({{"const", choice == Json(1)}}));
    }
  }
  if (!words.empty()) options.insert(options.begin(), object({{"enum", Json(std::move(words))}}));
  for (Json& pattern : patterns) options.push_back(std::move(pattern));
  return options;
}

Json::Array options_of(const KeySpec& spec, Type type);

Json elements(const KeySpec& spec, Type element) {
  KeySpec one = spec;
  one.type = element;
  one.also.clear();
  Json schema = object({{"type", "array"}});
  Json::Array options = options_of(one, element);
  if (element != Type::kAny) schema["items"] = any_of(std::move(options));
  if (spec.length) {
    schema["minItems"] = static_cast<std::int64_t>(*spec.length);
    schema["maxItems"] = static_cast<std::int64_t>(*spec.length);
  }
  return schema;
}

Json::Array options_of(const KeySpec& spec, Type type) {
  if (!spec.choices.empty() && type != Type::kArray) return choice_options(spec);
  switch (type) {
    case Type::kBoolean:
      return boolean_options(spec);
    case Type::kInteger:
      return number_options(spec, true);
    case Type::kNumber:
      return number_options(spec, false);
    case Type::kString:
    case Type::kPath:
      return {object({{"type", "string"}})};
    case Type::kObject:
      return {object({{"type", "object"}})};
    case Type::kAny:
      return {Json::object()};
    case Type::kArray:
      break;
  }
  Json::Array options{elements(spec, spec.element)};
  if (spec.one_or_many) {
    for (Json& one : options_of(
             [&] {
               KeySpec single = spec;
               single.type = spec.element;
               return single;
             }(),
             spec.element))
      options.push_back(std::move(one));
  }
  return options;
}

}  // namespace

std::string any_case_pattern(std::string_view text) {
  std::string pattern = "^";
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalpha(letter)) {
      pattern +=
          std::string("[") + static_cast<char>(std::toupper(letter)) + static_cast<char>(std::tolower(letter)) + "]";
    } else {
      pattern += (std::isalnum(letter) || c == '_' ? "" : "\\") + std::string(1, c);
    }
  }
  return pattern + "$";
}

Json key_schema(const KeySpec& spec, bool automatic) {
  Json::Array options = options_of(spec, spec.type);
  if (spec.per_group) options.push_back(elements(spec, Type::kNumber));
  for (const Type other : spec.also) {
    for (Json& option : options_of(spec, other)) options.push_back(std::move(option));
  }
  if (automatic) options.push_back(object({{"const", "auto"}}));
  if (!spec.required) options.push_back(object({{"type", "null"}}));
  Json schema = any_of(std::move(options));
  if (!spec.summary.empty()) schema["description"] = spec.summary;
  if (spec.fallback) schema["default"] = *spec.fallback;
  return schema;
}

Json closed_object(Json properties) {
  return object({{"type", "object"},
                 {"properties", std::move(properties)},
                 {"patternProperties", object({{"^(_.*|comment)$", true}})},
                 {"additionalProperties", false}});
}

}  // namespace capstan
