#include "core/registry/manifest.hpp"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <regex>
#include <tuple>

#include "capstan/plugin.h"
#include "core/errors.hpp"
#include "core/registry/manifest_reader.hpp"
#include "core/registry/plugin_kind.hpp"
#include "core/registry/read_param.hpp"
#include "core/registry/read_state.hpp"
#include "core/text/toml.hpp"

namespace capstan {
namespace {

using Names = std::vector<std::string>;

constexpr std::int64_t kSchema = 1;
constexpr int kMaxMeasures = 64, kLastOrder = 99;

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
const Names kAttachments = {"events", "layers", "batch"};

/// Traits that contradict each other. What an older plugin may say and train with all the same is a warning.
void check_traits(const ManifestTable& table, const ComponentManifest& component) {
  for (const char* parts : {"elementwise", "needs_param_norm"}) {
    if (component.has_trait(parts) && component.has_trait("needs_full_param")) {
      table.fail("traits", "'" + std::string(parts) +
                               "' cannot stand beside 'needs_full_param': with the one, an "
                               "optimizer gets parts of parameters, with the other whole ones. Keep one of them.");
    }
  }
  if (component.has_trait("needs_param_norm") && component.measures == 0 && component.measures_model == 0) {
    table.fail("traits",
               "'needs_param_norm' needs measures = k beside it: an optimizer with this trait gets parts of "
               "parameters and the sums of its function measure. Write how many sums, or take "
               "'needs_full_param'.");
  }
  if (component.measures_model > 0 && component.has_trait("own_communication")) {
    table.fail("measures_model", "cannot stand beside the trait own_communication, whose collectives() add up.");
  }
  for (const StateSpec& state : component.state) {
    if (!state.is_factor() || component.has_trait("needs_full_param")) continue;
    table.fail("traits", "state '" + state.name + "' has a value a row or column, which needs the trait " +
                             "needs_full_param: a part of a parameter has not got whole ones.");
  }
  if (component.runs_on("cpu") && !component.has_trait("cpu")) {
    table.warn("traits",
               "'cpu' is missing, so a configuration that offloads the optimizer refuses this one. Add it: "
               "with device = 'cpu' it updates on the host anyway.");
  }
}

/// The model types of transformers that a model builds from its parameter `config`.
Names read_model_types(const ManifestTable& table, const ComponentManifest& component) {
  Names types = table.names("model_types");
  if (types.empty()) return types;
  Names sorted = types;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    table.fail("model_types", "names '" + *twice + "' twice.");
  }
  const auto config = std::find_if(component.params.begin(), component.params.end(),
                                   [](const KeySpec& spec) { return spec.name == "config"; });
  if (config == component.params.end() || config->type != KeySpec::Type::kObject) {
    table.fail("model_types",
               "needs a parameter 'config' of type 'object', which takes the contents of config.json. Add "
               "params.config = { type = \"object\" }.");
  }
  return types;
}

/// Members that only some kinds have are unknown members to the other kinds.
void read_members(const ManifestTable& table, ComponentManifest& component) {
  if (component.kind.empty()) {
    // Which of them it should have is not known.
    for (const char* key :
         {"state", "measures", "measures_model", "traits", "attach", "layer_order", "order", "model_types"})
      table.find(key);
  } else if (component.kind == "optimizer") {
    for (const ManifestTable& state : table.list("state"))
      component.state.push_back(read_state(state, component.params));
    component.measures = static_cast<int>(table.integer("measures", 0, 0, kMaxMeasures));
    component.measures_model = static_cast<int>(table.integer("measures_model", 0, 0, kMaxMeasures));
    component.traits = table.choices("traits", kTraits);
    check_traits(table, component);
  } else if (component.kind == "observer") {
    component.attach = table.choices("attach", kAttachments);
    if (component.attaches("layers")) {
      component.layer_order = static_cast<int>(table.integer("layer_order", component.layer_order, 0, kLastOrder));
    }
  } else if (component.kind == "compression") {
    component.order = static_cast<int>(table.integer("order", component.order, 0, kLastOrder));
  } else if (component.kind == "model") {
    component.model_types = read_model_types(table, component);
  }
}

/// "wandb" or "wandb>=0.16.0".
std::string read_python_package(const ManifestTable& table) {
  std::string text = table.text("python_package", "");
  static const std::regex kForm("[A-Za-z0-9][A-Za-z0-9._-]*(>=[0-9]+(\\.[0-9]+){0,2})?");
  if (!text.empty() && !std::regex_match(text, kForm)) {
    table.fail("python_package",
               "must be a package's name, or one with its oldest version such as \"wandb>=0.16.0\", "
               "got '" +
                   text + "'.");
  }
  return text;
}

/// The device that a component is made for: the type of an accelerator, "cpu", or any.
std::string read_device(const ManifestTable& table) {
  const std::string device = table.text("device", ""), devices = table.text("devices", "");
  if (!devices.empty() && devices != ComponentManifest::kAnyDevice) {
    table.fail("devices",
               "must be \"any\", got '" + devices + "'. A component that is made for one device has 'device'.");
  }
  if (!device.empty() && !devices.empty()) {
    table.fail("devices", "says that the component runs on every device, and 'device' names one. Leave one out.");
  }
  if (!devices.empty()) return devices;
  static const std::regex kForm("[a-z][a-z0-9_]*");
  if (!device.empty() && !std::regex_match(device, kForm)) {
    table.fail("device", "must be \"cpu\" or the type of an accelerator, such as \"cuda\", got '" + device + "'.");
  }
  return device.empty() ? "cpu" : device;
}

ComponentManifest read_component(const ManifestTable& table) {
  ComponentManifest component;
  component.kind = table.choice("kind", "", plugin_kind_names());
  component.type = table.name("type");
  component.aliases = table.names("aliases");
  component.summary = table.text("summary", "");
  component.device = read_device(table);
  component.section = table.text("section", "");
  component.python_package = read_python_package(table);
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

  read_members(table, component);
  component.rules = read_rules(table, component.params);
  table.reject_unread();
  return component;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> read_abi_version(const ManifestTable& abi) {
  const std::string text = abi.text("plugin");
  if (text.empty()) return std::nullopt;
  std::uint32_t major = 0, minor = 0;
  const char* const end = text.data() + text.size();
  const auto [dot, major_error] = std::from_chars(text.data(), end, major);
  if (major_error == std::errc() && dot != end && *dot == '.') {
    const auto [last, minor_error] = std::from_chars(dot + 1, end, minor);
    if (minor_error == std::errc() && last == end) return {{major, minor}};
  }
  abi.fail("plugin", "must be a version such as \"1.0\", got '" + text + "'.");
  return std::nullopt;
}

/// SDKs from before the first release wrote their version under another key, and their numbers meet those of releases.
void refuse_unreleased_abi(const ManifestTable& abi, const std::string& where) {
  const Json* version = abi.find_unread("capstan");
  if (version == nullptr) return;
  throw PluginError(
      where + ": built for plugin ABI " + (version->is_string() ? version->as_string() : version->dump()) +
      " from before Capstan's first release, which is older than the " + std::to_string(CAPSTAN_ABI_MAJOR) + "." +
      std::to_string(CAPSTAN_ABI_MINOR) + " that this engine speaks. Rebuild it with the SDK of this release.");
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

bool ComponentManifest::answers_to(std::string_view name) const {
  const auto same = [&](const std::string& own) {
    return own.size() == name.size() && ::strncasecmp(own.data(), name.data(), name.size()) == 0;
  };
  return same(type) || std::any_of(aliases.begin(), aliases.end(), same);
}

bool ComponentManifest::takes_model_type(std::string_view model_type) const {
  return std::find(model_types.begin(), model_types.end(), model_type) != model_types.end();
}

bool ComponentManifest::attaches(std::string_view place) const {
  return std::find(attach.begin(), attach.end(), place) != attach.end();
}

namespace {

bool is_provided(const std::vector<ComponentManifest>& components, const ComponentManifest& wanted) {
  return std::any_of(components.begin(), components.end(), [&](const ComponentManifest& one) {
    const bool meet = one.runs_on(wanted.device) || wanted.runs_on(one.device);
    return one.kind == wanted.kind && meet && one.answers_to(wanted.type);
  });
}

/// What a manifest of another version says need not make sense to this one, so that its version is the only error.
void read_versions(const ManifestTable& root, ManifestProblems& problems, const std::string& where,
                   PluginManifest& manifest) {
  if (const auto schema = root.integer("schema", -1, 0, INT64_MAX); !root.find("schema")) {
    root.miss("schema", "must be 1 in this release.");
  } else if (schema != kSchema) {
    root.fail("schema", "must be 1 in this release, got " + std::to_string(schema) +
                            ". Rebuild it with the SDK of this release, or install a newer Capstan.");
    problems.throw_errors(where);
  }
  const ManifestTable abi = root.table("abi");
  refuse_unreleased_abi(abi, where);
  if (const auto version = read_abi_version(abi)) {
    std::tie(manifest.abi_major, manifest.abi_minor) = *version;
    check_abi(manifest, where);
  }
  read_torch(abi.table("torch"), manifest);
  abi.reject_unread();
}

}  // namespace

PluginManifest PluginManifest::parse(std::string_view toml, const std::string& where, ManifestVocabulary* vocabulary) {
  PluginManifest manifest;
  manifest.text = std::string(toml);
  Json document;
  try {
    document = parse_toml(toml, where + ": manifest");
  } catch (const ConfigError& error) {
    throw PluginError(error.what());
  }
  // The table around everything stands nowhere in the text.
  document = Json(std::move(document.as_object()));
  ManifestProblems problems(toml);
  const ManifestTable root(document, problems, "");
  read_versions(root, problems, where, manifest);
  manifest.name = root.name("name");
  manifest.version = root.semantic_version("version");
  manifest.vendor = root.text("vendor", "");
  manifest.license = root.text("license", "");
  manifest.url = root.text("url", "");
  for (const ManifestTable& table : root.list("components")) {
    ComponentManifest component = read_component(table);
    if (is_provided(manifest.components, component)) table.fail("type", "'" + component.type + "' is provided twice.");
    manifest.components.push_back(std::move(component));
  }
  const Json* components = root.find("components");
  if (!components || (components->is_array() && components->size() == 0)) {
    root.miss("components", "is missing: a plugin must provide at least one.");
  }
  root.reject_unread();
  problems.throw_errors(where);
  manifest.warnings = problems.warnings();
  if (vocabulary) *vocabulary = problems.vocabulary();
  return manifest;
}

}  // namespace capstan
