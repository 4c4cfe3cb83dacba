#include "core/engine/initialize.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/comm/time_limits.hpp"
#include "core/components/device.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/deferred_model.hpp"

namespace capstan {
namespace {

ConfigContext context_of(const Rendezvous& rendezvous, const ProgramValues& program) {
  ConfigContext context;
  context.program_values = program;
  context.world_size = rendezvous.size;
  if (rendezvous.size > 1) context.world_size_origin = rendezvous.origin;
  return context;
}

/// Rank 0 alone logs what all ranks find alike, as in 'capstan train'.
void speak_as(const Rendezvous& rendezvous) {
  if (rendezvous.rank == 0) return;
  log::set_level(std::max(log::level(), log::Level::kError));
  log::set_speaker("rank " + std::to_string(rendezvous.rank));
}

/// Where this process stands, by its launcher.
Rendezvous rank_of_process() {
  const Rendezvous rendezvous = read_rendezvous(process_environment());
  speak_as(rendezvous);
  return rendezvous;
}

/// Each process of such a launch would train alone: none of them is told of the others but by a Run.
void refuse_elastic_launch() {
  const Environment environment = process_environment();
  if (!environment("CAPSTAN_ELASTIC_MEMBER") || environment("RANK")) return;
  throw RuntimeFault(
      "initialize: 'capstan launch --elastic' has started this program, which makes its engine itself, and so cannot "
      "go "
      "on with other processes. Train by capstan::Run, or capstan.Run in Python, or start it without --elastic.");
}

}  // namespace

Dataset open_dataset(const Config& config, const PluginIndex& plugins, const Dataset::Source& source) {
  Registry registry(plugins, config.plugin_sha256);
  ComponentChoice tokens{"dataset", "tokens", Json::object(), "capstan.data.path"};
  tokens.params["format"] = "auto";
  const ComponentChoice choice = config.run.dataset.value_or(tokens);
  return Dataset(registry.create(choice.where, "dataset", choice.type, choice.params, model_host()), source);
}

Model build_model(const std::function<Model()>& build) {
  return rank_of_process().size > 1 ? without_values(build) : build();
}

void use_device(const std::string& config_path_or_base64, const ProgramValues& program) {
  ConfigContext context = context_of(rank_of_process(), program);
  context.hidden_size = 1;  // there is no model yet, and no device follows from its size
  const ConfigReading reading = read_config(read_config_text(config_path_or_base64), context);
  if (reading.config) load_device(*reading.config, reading.plugins);
}

Engine initialize(Model model, const std::string& config_path_or_base64, const ProgramValues& program) {
  return initialize(std::move(model), read_config_text(config_path_or_base64), read_rendezvous(process_environment()),
                    program);
}

Engine initialize(Model model, const ConfigText& text, const Rendezvous& rendezvous, const ProgramValues& program) {
  refuse_elastic_launch();
  speak_as(rendezvous);
  ConfigContext context = context_of(rendezvous, program);
  const Json facts = model.describe();
  if (const Json* width = facts.find("hidden_size"); width && width->is_integer()) {
    context.hidden_size = width->as_integer();
  }
  PluginIndex plugins;
  const Config config = load_config(text, context, plugins);
  if (config.run.model) {
    log::warning("capstan.model '" + config.run.model->type + "' is not used: this program brings its own model, '" +
                 model.description() + "'.");
  }
  return Engine(std::move(model), config, plugins,
                Communicator::connect(rendezvous, time_limits(process_environment())));
}

}  // namespace capstan
