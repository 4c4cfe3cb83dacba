#include "core/registry/read_param.hpp"

#include <cmath>
#include <stdexcept>

#include "core/schema/param_type.hpp"

namespace capstan {
namespace {

void read_type(const ManifestTable& table, const Json& value, KeySpec& spec, bool first) {
  if (!value.is_string()) return table.fail("type", "must be the name of a type, got " + value.dump() + ".");
  ParamType type;
  try {
    type = parse_param_type(value.as_string());
  } catch (const std::invalid_argument& error) {
    return table.fail("type", error.what());
  }
  if (type.type == KeySpec::Type::kArray) {
    spec.element = type.element;
    spec.length = type.length;
  }
  if (first) {
    spec.type = type.type;
  } else {
    spec.also.push_back(type.type);
  }
}

bool has_type(const Json& value, KeySpec::Type type) {
  switch (type) {
    case KeySpec::Type::kBoolean:
      return value.is_bool();
    case KeySpec::Type::kInteger:
      return value.is_integer() || (value.is_number() && std::floor(value.as_number()) == value.as_number());
    case KeySpec::Type::kNumber:
      return value.is_number();
    case KeySpec::Type::kString:
    case KeySpec::Type::kPath:
      return value.is_string();
    case KeySpec::Type::kArray:
      return value.is_array();
    case KeySpec::Type::kObject:
      return value.is_object();
    case KeySpec::Type::kAny:
      return true;
  }
  return false;
}

bool out_of_range(const Json& value, const KeySpec& spec) {
  if (!value.is_number()) return false;
  const double number = value.as_number();
  return (spec.minimum && (spec.exclusive_minimum ? number <= *spec.minimum : number < *spec.minimum)) ||
         (spec.maximum && (spec.exclusive_maximum ? number >= *spec.maximum : number > *spec.maximum));
}

/// The author's own slips: a default or choice that the parameter would not accept.
void check_value(const ManifestTable& table, const Json& value, const std::string& path, const KeySpec& spec) {
  bool fits = has_type(value, spec.type) || (spec.per_group && value.is_array());
  for (const auto type : spec.also) fits = fits || has_type(value, type);
  if (!fits) return table.fail(path, value.dump() + " is not of the parameter's type.");
  if (out_of_range(value, spec)) table.fail(path, value.dump() + " is outside the parameter's range.");
  if (value.is_array()) {
    if (spec.length && value.size() != *spec.length && spec.type == KeySpec::Type::kArray) {
      return table.fail(
          path, "must have " + std::to_string(*spec.length) + " elements, has " + std::to_string(value.size()) + ".");
    }
    for (const Json& item : value.as_array()) {
      if (!has_type(item, spec.per_group && spec.type != KeySpec::Type::kArray ? spec.type : spec.element)) {
        return table.fail(path, "element " + item.dump() + " is not of the parameter's type.");
      }
      if (out_of_range(item, spec))
        return table.fail(path, "element " + item.dump() + " is outside the parameter's range.");
    }
  }
}

/// A bound and whether it is exclusive: `min` or `exclusive_min`.
void read_bound(const ManifestTable& table, const std::string& name, std::optional<double>& bound, bool& exclusive) {
  const Json* plain = table.find(name);
  const Json* open = table.find("exclusive_" + name);
  if (plain && open) table.fail("exclusive_" + name, "cannot stand beside '" + name + "'.");
  const Json* value = plain ? plain : open;
  if (!value) return;
  const std::string key = plain ? name : "exclusive_" + name;
  if (!value->is_number()) return table.fail(key, "must be a number, got " + value->dump() + ".");
  bound = value->as_number();
  exclusive = open != nullptr;
}

ParamRule read_rule(const ManifestTable& table, const std::vector<KeySpec>& params) {
  ParamRule rule;
  rule.check = table.text("check");
  rule.message = table.text("message");
  rule.only_warns = table.choice("level", "error", {"error", "warning"}) == "warning";
  const char* key = "check";
  try {
    if (!rule.check.empty()) rule.condition = parse_condition(rule.check, params);
    key = "message";
    parse_message(rule, params);
  } catch (const std::invalid_argument& error) {
    const std::string& text = key == std::string("check") ? rule.check : rule.message;
    table.fail(key, "\"" + text + "\": " + error.what());
  }
  table.reject_unread();
  return rule;
}

/// A rule that a component breaks as it comes would refuse every configuration that says nothing.
void check_defaults(const ManifestTable& table, const ParamRule& rule, const std::vector<KeySpec>& params) {
  Json defaults = Json::object();
  for (const KeySpec& spec : params) {
    if (spec.fallback) defaults[spec.name] = *spec.fallback;
  }
  if (const auto breach = rule.breach(defaults); breach && !rule.only_warns) {
    table.fail("check", "\"" + rule.check + "\": the defaults of the parameters break this rule.");
  }
}

}  // namespace

KeySpec read_param(const std::string& name, const ManifestTable& table) {
  KeySpec spec;
  spec.name = name;
  table.knows("type", param_type_names());
  const Json* type = table.find("type");
  if (!type) {
    table.miss("type", "is missing. Write type = \"number\", or another type.");
  } else if (type->is_array() && type->size() > 0) {
    for (const Json& one : type->as_array()) read_type(table, one, spec, &one == &type->as_array().front());
  } else {
    read_type(table, *type, spec, true);
  }
  spec.nullable = table.boolean("nullable", false);
  spec.required = table.boolean("required", false);
  spec.per_group = table.boolean("per_group", false);
  spec.aliases = table.names("aliases");
  spec.summary = table.text("summary", "");
  read_bound(table, "min", spec.minimum, spec.exclusive_minimum);
  read_bound(table, "max", spec.maximum, spec.exclusive_maximum);
  if (spec.minimum && spec.maximum && *spec.minimum > *spec.maximum) table.fail("max", "is below the minimum.");
  if (const Json* choices = table.find("choices"); choices && (!choices->is_array() || choices->size() == 0)) {
    table.fail("choices", "must be a list of values.");
  } else if (choices) {
    for (const Json& choice : choices->as_array()) check_value(table, choice, "choices", spec);
    spec.choices = choices->as_array();
  }
  if (const Json* fallback = table.find("default")) {
    if (spec.required) table.fail("default", "cannot stand beside required = true.");
    check_value(table, *fallback, "default", spec);
    spec.fallback = *fallback;
  }
  table.reject_unread();
  return spec;
}

std::vector<ParamRule> read_rules(const ManifestTable& component, const std::vector<KeySpec>& params) {
  std::vector<ParamRule> rules;
  for (const ManifestTable& table : component.list("rules")) {
    rules.push_back(read_rule(table, params));
    if (rules.back().condition.is_set()) check_defaults(table, rules.back(), params);
  }
  return rules;
}

}  // namespace capstan
