#include "core/registry/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "capstan/plugin.h"
#include "core/errors.hpp"
#include "core/registry/manifest_reader.hpp"
#include "core/registry/plugin_kind.hpp"
#include "core/registry/read_state.hpp"
#include "core/schema/param_type.hpp"
#include "core/text/nearest.hpp"
#include "core/text/toml.hpp"

namespace capstan {
namespace {

using Names = std::vector<std::string>;

constexpr std::int64_t kSchema = 1;
constexpr int kMaxMeasures = 64;

const Names kTraits = {"elementwise",
                       "needs_param_norm",
                       "needs_full_param",
                       "needs_full_gradient",
                       "needs_dynamic_loss_scale",
                       "sparse_rows",
                       "own_communication",
                       "graph_safe",
                       "cpu",
                       "cuda"};
const Names kAttachments = {"events", "weights", "operands", "layers", "batch"};

void read_type(const ManifestTable& table, const Json& value, KeySpec& spec, bool first) {
  if (!value.is_string()) table.fail("type", "must be the name of a type, got " + value.dump() + ".");
  ParamType type;
  try {
    type = parse_param_type(value.as_string());
  } catch (const std::invalid_argument& error) {
    table.fail("type", error.what());
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
  if (!fits) table.fail(path, value.dump() + " is not of the parameter's type.");
  if (out_of_range(value, spec)) table.fail(path, value.dump() + " is outside the parameter's range.");
  if (value.is_array()) {
    if (spec.length && value.size() != *spec.length && spec.type == KeySpec::Type::kArray) {
      table.fail(path,
                 "must have " + std::to_string(*spec.length) + " elements, has " + std::to_string(value.size()) + ".");
    }
    for (const Json& item : value.as_array()) {
      if (!has_type(item, spec.per_group && spec.type != KeySpec::Type::kArray ? spec.type : spec.element)) {
        table.fail(path, "element " + item.dump() + " is not of the parameter's type.");
      }
      if (out_of_range(item, spec)) table.fail(path, "element " + item.dump() + " is outside the parameter's range.");
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
  if (!value->is_number()) table.fail(key, "must be a number, got " + value->dump() + ".");
  bound = value->as_number();
  exclusive = open != nullptr;
}

KeySpec read_param(const std::string& name, const ManifestTable& table) {
  KeySpec spec;
  spec.name = name;
  const Json* type = table.find("type");
  if (!type) table.fail("type", "is missing. Write type = \"number\", or another type.");
  if (type->is_array() && type->size() > 0) {
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
  if (const Json* choices = table.find("choices")) {
    if (!choices->is_array() || choices->size() == 0) table.fail("choices", "must be a list of values.");
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

ComponentManifest read_component(const ManifestTable& table) {
  ComponentManifest component;
  component.kind = table.choice("kind", "", plugin_kind_names());
  component.type = table.name("type");
  component.aliases = table.names("aliases");
  component.summary = table.text("summary", "");
  component.device = table.choice("device", "cpu", {"cpu", "cuda"});
  component.section = table.text("section", "");
  for (const auto& [name, param] : table.tables("params")) component.params.push_back(read_param(name, param));

  Names names;
  for (const KeySpec& spec : component.params) {
    names.push_back(spec.name);
    names.insert(names.end(), spec.aliases.begin(), spec.aliases.end());
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    table.fail("params", "'" + *twice + "' is the name or alias of two parameters.");
  }

  // Members that only some kinds have are unknown members to the other kinds.
  if (component.kind == "optimizer") {
    for (const ManifestTable& state : table.list("state"))
      component.state.push_back(read_state(state, component.params));
    component.measures = static_cast<int>(table.integer("measures", 0, 0, kMaxMeasures));
    component.measures_model = static_cast<int>(table.integer("measures_model", 0, 0, kMaxMeasures));
    component.traits = table.choices("traits", kTraits);
    if (component.measures_model > 0 && component.has_trait("own_communication")) {
      table.fail("measures_model", "cannot stand beside the trait own_communication, whose collectives() add up.");
    }
    for (const StateSpec& state : component.state) {
      if (!state.is_factor() || component.has_trait("needs_full_param")) continue;
      table.fail("traits", "state '" + state.name + "' has a value a row or column, which needs the trait " +
                               "needs_full_param: a part of a parameter has not got whole ones.");
    }
  } else if (component.kind == "observer") {
    component.attach = table.choices("attach", kAttachments);
  }
  table.reject_unread();
  return component;
}

std::pair<std::uint32_t, std::uint32_t> read_abi_version(const ManifestTable& abi) {
  const std::string text = abi.text("capstan");
  std::uint32_t major = 0, minor = 0;
  const char* const end = text.data() + text.size();
  const auto [dot, major_error] = std::from_chars(text.data(), end, major);
  if (major_error == std::errc() && dot != end && *dot == '.') {
    const auto [last, minor_error] = std::from_chars(dot + 1, end, minor);
    if (minor_error == std::errc() && last == end) return {major, minor};
  }
  abi.fail("capstan", "must be a version such as \"1.0\", got '" + text + "'.");
}

void check_abi(const PluginManifest& manifest, const std::string& where) {
  if (manifest.abi_major == CAPSTAN_ABI_MAJOR && manifest.abi_minor <= CAPSTAN_ABI_MINOR) return;
  const auto version = [](std::uint32_t major, std::uint32_t minor) {
    return std::to_string(major) + "." + std::to_string(minor);
  };
  const bool newer = manifest.abi_major > CAPSTAN_ABI_MAJOR ||
                     (manifest.abi_major == CAPSTAN_ABI_MAJOR && manifest.abi_minor > CAPSTAN_ABI_MINOR);
  throw PluginError(where + ": built for Capstan plugin ABI " + version(manifest.abi_major, manifest.abi_minor) +
                    ", this engine speaks " + version(CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR) +
                    ". Rebuild it with the SDK of this release" +
                    (newer ? ", or install a Capstan that speaks " + std::to_string(manifest.abi_major) + "." +
                                 (manifest.abi_major > CAPSTAN_ABI_MAJOR ? "x" : std::to_string(manifest.abi_minor))
                           : "") +
                    ".");
}

void read_torch(const ManifestTable& torch, PluginManifest& manifest) {
  const std::string tier = torch.choice("tier", "", {"none", "stable", "pinned"});
  if (tier == "none") {
    manifest.tier = PluginManifest::Tier::kNone;
  } else if (tier == "stable") {
    manifest.tier = PluginManifest::Tier::kStable;
    manifest.torch_min = torch.version("min");
  } else {
    manifest.tier = PluginManifest::Tier::kPinned;
    manifest.torch_version = torch.version("version");
    manifest.torch_build_id = torch.text("build_id");
    manifest.cuda = torch.text("cuda", "");
  }
  torch.reject_unread();
}

}  // namespace

bool ComponentManifest::has_trait(std::string_view trait) const {
  return std::find(traits.begin(), traits.end(), trait) != traits.end();
}

bool ComponentManifest::attaches(std::string_view place) const {
  return std::find(attach.begin(), attach.end(), place) != attach.end();
}

PluginManifest PluginManifest::parse(std::string_view toml, const std::string& where) {
  PluginManifest manifest;
  manifest.text = std::string(toml);
  Json document;
  try {
    document = parse_toml(toml, where + ": manifest");
  } catch (const ConfigError& error) {
    throw PluginError(error.what());
  }
  const ManifestTable root(document, where + ": manifest", "");
  // Versions first: what else is written in a manifest of another version need not make sense to this one.
  if (const auto schema = root.integer("schema", -1, 0, INT64_MAX); schema != kSchema) {
    root.fail("schema",
              "must be 1 in this release" +
                  (schema < 0 ? std::string(".")
                              : ", got " + std::to_string(schema) +
                                    ". Rebuild it with the SDK of this release, or install a newer Capstan."));
  }
  const ManifestTable abi = root.table("abi");
  std::tie(manifest.abi_major, manifest.abi_minor) = read_abi_version(abi);
  check_abi(manifest, where);
  read_torch(abi.table("torch"), manifest);
  abi.reject_unread();

  manifest.name = root.name("name");
  manifest.version = root.text("version");
  manifest.vendor = root.text("vendor", "");
  manifest.license = root.text("license", "");
  manifest.url = root.text("url", "");
  for (const ManifestTable& component : root.list("components")) {
    manifest.components.push_back(read_component(component));
  }
  if (manifest.components.empty()) root.fail("components", "is missing: a plugin must provide at least one.");
  root.reject_unread();
  return manifest;
}

}  // namespace capstan
