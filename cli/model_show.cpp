#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/model_shapes.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "core/registry/parameter_role.hpp"
#include "core/text/nearest.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// A plugin's file is shown by its own model: its folder comes first in the search path.
std::string model_of_file(const std::string& file, ConfigArguments& config) {
  const IndexedPlugin plugin = read_plugin(file);
  const auto& components = plugin.manifest.components;
  const auto model = std::find_if(components.begin(), components.end(),
                                  [](const ComponentManifest& component) { return component.kind == "model"; });
  if (model == components.end()) throw PluginError(file + ": provides no model.");
  require_plugin_name(plugin);
  config.plugin_paths.insert(config.plugin_paths.begin(), fs::absolute(plugin.file).parent_path().string());
  return model->type;
}

/// A value of --model, or a plugin's file, becomes the configuration's model, which --set may change afterwards.
void choose_model(const std::string& model, ConfigArguments& config) {
  std::string choice = model.ends_with(".so") ? model_of_file(model, config) : model;
  config.overrides.emplace(config.overrides.begin(), "capstan.model", std::move(choice));
}

Config read(ConfigArguments arguments, const std::string& model, PluginIndex& plugins) {
  choose_model(model, arguments);
  ConfigContext context = config_context(arguments);
  context.world_size = 1;
  context.check_only = true;
  context.takes_steps = false;
  return load_config(config_text(arguments), context, plugins);
}

std::string dtype_of(const at::Tensor& tensor) {
  // "Float" of LibTorch is the float32 of configurations.
  static const std::map<at::ScalarType, std::string> kNames = {
      {at::kFloat, "float32"}, {at::kDouble, "float64"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  const auto name = kNames.find(tensor.scalar_type());
  return name == kNames.end() ? c10::toString(tensor.scalar_type()) : name->second;
}

std::string shape_of(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
  return sizes.empty() ? "scalar" : joined(sizes, " x ");
}

struct Count {
  std::int64_t parameters = 0, elements = 0;
  void add(const at::Tensor& tensor) {
    ++parameters;
    elements += tensor.numel();
  }
  Json json() const {
    Json json = Json::object();
    json["parameters"] = parameters;
    json["elements"] = elements;
    return json;
  }
};

struct Counts {
  Count all, trained;
  std::map<capstan_param_role, Count> of_role;

  explicit Counts(const Model& model) {
    for (const NamedTensor& parameter : model.parameters()) {
      all.add(parameter.tensor);
      of_role[parameter.role].add(parameter.tensor);
      if (parameter.tensor.requires_grad()) trained.add(parameter.tensor);
    }
  }
};

Json model_json(const Model& model) {
  Json json = Json::object();
  json["model"] = model.description();
  json["parameters"] = Json::array();
  for (const NamedTensor& parameter : model.parameters()) {
    Json one = Json::object();
    one["name"] = parameter.name;
    one["shape"] = Json(Json::Array(parameter.tensor.sizes().begin(), parameter.tensor.sizes().end()));
    one["dtype"] = dtype_of(parameter.tensor);
    one["role"] = parameter_role_name(parameter.role);
    one["elements"] = parameter.tensor.numel();
    one["trained"] = parameter.tensor.requires_grad();
    json["parameters"].push_back(one);
  }
  const Counts counts(model);
  json["roles"] = Json::object();
  for (const auto& [role, count] : counts.of_role) json["roles"][parameter_role_name(role)] = count.json();
  json["total"] = counts.all.json();
  json["trained"] = counts.trained.json();
  return json;
}

std::string model_text(const Model& model) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "SHAPE", "DTYPE", "ELEMENTS", "ROLE"}};
  for (const NamedTensor& parameter : model.parameters()) {
    rows.push_back(
        {parameter.name, shape_of(parameter.tensor), dtype_of(parameter.tensor), grouped(parameter.tensor.numel()),
         parameter_role_name(parameter.role) + std::string(parameter.tensor.requires_grad() ? "" : ", not trained")});
  }
  const Counts counts(model);
  std::vector<std::vector<std::string>> sums = {{"ROLE", "PARAMETERS", "ELEMENTS"}};
  const auto add = [&](const std::string& name, const Count& count) {
    sums.push_back({name, grouped(count.parameters), grouped(count.elements)});
  };
  for (const auto& [role, count] : counts.of_role) add(parameter_role_name(role), count);
  if (counts.trained.parameters != counts.all.parameters) add("trained", counts.trained);
  add("total", counts.all);
  return table_text(rows) + "\n" + table_text(sums);
}

}  // namespace

int model_show(const ModelShowArguments& arguments) {
  PluginIndex plugins;
  const Config config = read(arguments.config, arguments.model, plugins);
  const Model model = model_shapes(config, plugins, arguments.with_values);
  print(arguments.json ? model_json(model).dump(2) + "\n" : model_text(model));
  return 0;
}

}  // namespace capstan::cli
