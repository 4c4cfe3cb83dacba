#include "core/config/resolve/pretrained.hpp"

#include "core/errors.hpp"
#include "core/pretrained/model_source.hpp"
#include "core/text/nearest.hpp"
#include "core/text/table.hpp"

namespace capstan {
namespace {

constexpr const char* kModelSection = "capstan.model";

/// `given` over `base`, object by object.
Json merged(Json base, const Json& given) {
  if (!base.is_object() || !given.is_object()) return given;
  for (const auto& [key, value] : given.as_object()) {
    const Json* old = base.find(key);
    base[key] = old != nullptr ? merged(*old, value) : value;
  }
  return base;
}

std::string unknown_type(const PretrainedModel& model, const PluginIndex& plugins) {
  const std::vector<std::string> known = plugins.model_types();
  const std::string type = model.model_type.substr(0, 100);
  return "'" + model.config_file + "': no plugin takes the model type '" + type + "'." + suggestion(type, known) +
         " Known: " + (known.empty() ? "none" : capstan::joined(known)) + "." +
         (model.has_remote_code ? " The folder brings Python code for it (auto_map), which is never run." : "") +
         " A plugin names the types that it takes under model_types in its manifest." + plugins.searched_text();
}

/// Fills in the model that a folder or file describes. Throws RuntimeFault.
void fill(Json& model, const std::string& path, const PluginIndex& plugins, Problems& problems) {
  PretrainedModel source = read_pretrained(path);
  const ComponentRef found = plugins.find_model_type(source.model_type);
  if (!found) throw RuntimeFault(unknown_type(source, plugins));
  if (source.has_remote_code) {
    problems.notice(kModelSection,
                    "'" + source.config_file + "': auto_map names Python code of the folder, which is never run.");
  }
  Json& params = model["params"];
  if (!params.is_object()) params = Json::object();
  const Json* given = params.find("config");
  params["config"] =
      given != nullptr && given->is_object() ? merged(std::move(source.config), *given) : std::move(source.config);
  model["type"] = found.component->type;
  if (model.find("weights") == nullptr) model["weights"] = path;
}

}  // namespace

void resolve_pretrained(Json& document, const PluginIndex& plugins, Problems& problems) {
  Json* section = document.find("capstan");
  Json* model = section != nullptr ? section->find("model") : nullptr;
  const Json* type = model != nullptr ? model->find("type") : nullptr;
  if (type == nullptr || !type->is_string()) return;
  const std::optional<std::string> path = pretrained_path(type->as_string());
  if (!path) return;
  try {
    fill(*model, *path, plugins, problems);
  } catch (const RuntimeFault& fault) {
    problems.error(kModelSection, fault.what());
    section->erase("model");
  }
}

std::string initial_weights(const Config& config) {
  const Json* section = config.effective.find("capstan");
  const Json* model = section != nullptr ? section->find("model") : nullptr;
  const Json* weights = model != nullptr ? model->find("weights") : nullptr;
  return weights != nullptr && weights->is_string() ? weights->as_string() : "";
}

}  // namespace capstan
