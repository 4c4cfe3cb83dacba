#include "cli/saved_setup.hpp"

#include <utility>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/comm/communicator.hpp"
#include "core/config/component_params.hpp"
#include "core/config/config_document.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/pretrained/model_source.hpp"
#include "core/registry/registry.hpp"
#include "core/run/run_model.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kCompression = "compression_training";

const Json* member(const Json& object, const char* section, const char* key) {
  const Json* around = object.find(section);
  const Json* found = around != nullptr ? around->find(key) : nullptr;
  return found != nullptr && !found->is_null() ? found : nullptr;
}

/// Reads `capstan.<key>` of the saved configuration for each key, and `compression` as compression_training, as a
/// configuration of their own: what else a training needs is nothing to who reads its checkpoint.
LoadedConfig load_parts(const SavedRunFacts& run, const std::vector<const char*>& keys, const Json& compression) {
  Json document = Json::object();
  document["train_batch_size"] = 1;
  document["capstan"] = Json::object();
  for (const char* key : keys) {
    if (const Json* value = member(run.config(), "capstan", key)) document["capstan"][key] = *value;
  }
  if (compression.size() > 0) document[kCompression] = compression;
  LoadedConfig loaded;
  loaded.communicator = Communicator::alone();
  ConfigContext context;
  context.takes_steps = false;
  context.says_autos = false;
  context.plugin_paths = run.plugin_paths;
  loaded.config = load_config({document.dump(), "the configuration in " + run.name, false}, context, loaded.plugins);
  return loaded;
}

/// Whether a technique of compression_training is in use.
bool in_use(const Json& technique) {
  const Json* enabled = member(technique, "shared_parameters", "enabled");
  return enabled != nullptr && *enabled == Json(true);
}

/// The section with the techniques that were used: of the others nothing is to be said.
Json used_techniques(const SavedRunFacts& run) {
  Json used = Json::object();
  const Json* section = run.config().find(kCompression);
  if (section == nullptr || !section->is_object()) return used;
  for (const auto& [technique, values] : section->as_object()) {
    if (in_use(values)) used[technique] = values;
  }
  return used;
}

}  // namespace

const Json& SavedRunFacts::config() const {
  static const Json kNone = Json::object();
  const Json* config = state.find("config");
  return config != nullptr ? *config : kNone;
}

SavedModel saved_model(const SavedRunFacts& run) {
  const Json* model = member(run.config(), "capstan", "model");
  if (model == nullptr || !model->is_object()) {
    throw RuntimeFault("checkpoint '" + run.name +
                       "': a program's own model was trained, which only that program can build. Export it to "
                       "safetensors or pt.");
  }
  const Model built = build_model(load_parts(run, {"model", "plugins"}, Json::object()));
  return {built.describe(), built.description()};
}

bool has_saved_model(const SavedRunFacts& run) {
  const Json* model = member(run.config(), "capstan", "model");
  return model != nullptr && model->is_object();
}

void add_saved_model(RunSource& source, const std::string& checkpoint) {
  const ConfigText text = source.text();
  source.text = [text] { return text; };
  // The default configuration is not the user's, and neither is its model.
  ConfigText of_user = text;
  if (!text.has_places) of_user.text = "{}";
  Problems reported_later;
  const std::optional<Json> document = overridden_document(of_user, source.context, reported_later);
  if (!document) return;
  // Single keys of a model, as --set capstan.model.params.dropout gives, change the saved one.
  const std::optional<Json> file = config_document(of_user, reported_later);
  if (file && member(*file, "capstan", "model") != nullptr) return;
  const Json* given = member(*document, "capstan", "model");
  if (given != nullptr && (!given->is_object() || given->find("type") != nullptr)) return;
  const CheckpointName name = CheckpointName::parse(checkpoint);
  const std::string tag = tag_of(name);
  const Json state = read_checkpoint_state(name.dir, tag);
  const SavedRunFacts run{state, name.dir + ", " + tag, {}};
  auto& overrides = source.context.overrides;
  if (has_saved_model(run)) {
    overrides.emplace(overrides.begin(), "capstan.model", *member(run.config(), "capstan", "model"));
  } else if (is_trainer_folder(name.dir)) {
    Json model = Json::object();
    model["type"] = "hf:" + name.dir;
    overrides.emplace(overrides.begin(), "capstan.model", std::move(model));
  }
}

const Json* saved_model_config(const SavedRunFacts& run) {
  const Json* config = pretrained_config(run.config());
  return config != nullptr && config->find("model_type") != nullptr ? config : nullptr;
}

Model saved_model_with(const SavedRunFacts& run, const Json& params) {
  Json state = run.state;
  for (const auto& [name, value] : params.as_object()) state["config"]["capstan"]["model"]["params"][name] = value;
  return build_model(load_parts({state, run.name, run.plugin_paths}, {"model", "plugins"}, Json::object()));
}

Compressions saved_compressions(const SavedRunFacts& run) {
  const Json* modules = run.state.find("modules");
  if (modules == nullptr) {
    throw RuntimeFault("checkpoint '" + run.name +
                       "': its run compressed no weights (its configuration has no compression_training that does). "
                       "Export it without --compressed.");
  }
  const LoadedConfig loaded = load_parts(run, {"plugins", "compressions", "corrections"}, used_techniques(run));
  Compressions compressions;
  Registry registry(loaded.plugins, loaded.config.plugin_sha256);
  for (const ComponentChoice& choice : loaded.config.compressions) {
    const Json params = component_params(choice, loaded.config, loaded.plugins);
    compressions.add(registry.create(choice.where, choice.kind, choice.type, params, model_host()));
  }
  compressions.plan(*modules);
  if (const Json* states = run.state.find("compressions")) compressions.load(*states);
  return compressions;
}

}  // namespace capstan::cli
