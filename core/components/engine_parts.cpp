// Builds what an engine consists of, before its first step.

#include "core/components/engine_parts.hpp"

#include <limits>
#include <string>
#include <utility>

#include "core/components/join_ranks.hpp"
#include "core/compression/unmatched_groups.hpp"
#include "core/config/component_params.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/parameter_classes.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/registry/host.hpp"
#include "core/standard_output.hpp"
#include "core/zero/offload_plan.hpp"

namespace capstan {
namespace {

capstan_host engine_host(EngineHostContext& context, Communicator& communicator) {
  capstan_host host = make_host();
  host.ctx = &context;
  host.rank = static_cast<std::uint32_t>(communicator.rank());
  host.world_size = static_cast<std::uint32_t>(communicator.size());
  add_engine_functions(host);
  return host;
}

}  // namespace

EngineParts::EngineParts(Model built_model, const Config& built_config, const PluginIndex& index,
                         std::shared_ptr<Communicator> ranks)
    : communicator(ranks ? std::move(ranks) : Communicator::alone()),
      config(built_config),
      // One rank speaks for all.
      report_output([speaks = communicator->rank() == 0](std::string_view text) {
        if (speaks) write_to_standard_output(text);
      }),
      plugins(index),
      host(engine_host(host_context, *communicator)),
      registry(plugins, config.plugin_sha256),
      accelerator(build_accelerator()),
      model(move_to_device(join(std::move(built_model)))),
      observers([this] {
        Observers attached;
        for (const ComponentChoice& choice : config.observers) attached.add(create(choice));
        return attached;
      }()),
      compressions(build_compressions()),
      groups(model.parameters(), config.optimizer.value_or(ComponentChoice{}), config.parameter_groups,
             [this](const std::string& name) { return compressions.parent_of(name); }),
      optimizer(config.optimizer ? std::optional<Optimizer>(create(*config.optimizer)) : std::nullopt),
      schedule(config.scheduler ? std::optional<Component>(create(*config.scheduler)) : std::nullopt, groups),
      store(model.parameters(), groups, *accelerator, store_options()),
      scaler(config.precision) {}

Model EngineParts::join(Model built_model) {
  CommsLog::Print print;
  if (communicator->rank() == 0) print = [this](const std::string& line) { report_line(line); };
  communicator->log().configure(config.comms_logger, std::move(print));
  return join_ranks(std::move(built_model), config, *communicator);
}

Component EngineParts::create(const ComponentChoice& choice) {
  // Corrected forms are asked for once, in the capstan section.
  const Json params = component_params(choice, config, plugins);
  return registry.create(choice.where, choice.kind, choice.type, params, &host, choice.device);
}

Compressions EngineParts::build_compressions() {
  Compressions made;
  if (config.compressions.empty()) return made;
  for (const ComponentChoice& choice : config.compressions) made.add(create(choice));
  made.plan(module_table(model, config.run.seed));
  const UnmatchedGroups unmatched = unmatched_groups(made, config);
  if (communicator->rank() == 0) {
    for (const std::string& warning : unmatched.warnings) log::warning(warning);
  }
  unmatched.mistakes.throw_if_any();
  refuse_gradient_uses(made);
  add_trained_states(made, config.run.seed, model);
  return made;
}

void EngineParts::refuse_gradient_uses(const Compressions& made) const {
  if (!made.uses_gradients() || !config.optimizer) return;
  const ComponentManifest* chosen =
      plugins.find("optimizer", config.optimizer->type, config.optimizer->device).component;
  if (!communicates_by_itself(chosen)) return;
  throw ConfigError(
      config.optimizer->where + ": '" + config.optimizer->type +
      "' averages gradients by itself, and compression_training masks gradients before that. Choose another "
      "optimizer, or leave pruning out.");
}

ParameterStore::Options EngineParts::store_options() {
  ParameterStore::Options options;
  options.compute_dtype = compute_dtype(config.precision);
  if (config.precision.keep_batchnorm_fp32) {
    options.stays_fp32 = [classes = ParameterClasses(model)](const NamedTensor& parameter) {
      return classes.of(parameter.name).find("BatchNorm") != std::string::npos;
    };
  }
  options.sparse_gradients = config.communication.sparse_gradients;
  options.sparse_rows = takes_sparse_rows(manifest());
  options.round_masters = !config.precision.fp32_masters;
  options.low_precision_masters = config.precision.low_precision_masters;
  if (config.precision.stochastic_rounding) options.rounding_seed = config.run.seed;
  options.updates_on_host = updates_on_host(config);
  options.accumulation_dtype = dtype_named(config.precision.grad_accum_dtype);
  options.sub_group_size = config.zero.sub_group_size;
  if (!compressions.empty()) {
    options.compressed = [this](const NamedTensor& parameter) { return compressions.compresses(parameter.name); };
    options.compress = [this](const std::string& step, CompressedParts& parts, bool fresh) {
      const bool cut = !parts.parameters.front().of_ranks.empty();
      compressions.fill(step, parts, progress.updates, fresh, cut ? communicator.get() : nullptr);
    };
    options.trained_state_of = [this](const NamedTensor& parameter) { return compressions.parent_of(parameter.name); };
  }
  if (optimizer) options.states = declared_states(optimizer->manifest(), *config.optimizer);
  // Ranks that talk to each other must all be asked once an update, about the same.
  if (communicates_by_itself(manifest())) {
    options.sub_group_size = std::numeric_limits<std::int64_t>::max();
    options.every_slot = true;
  }
  options.residency = {.max_live = config.zero.stage3_max_live_parameters,
                       .max_reuse_distance = config.zero.stage3_max_reuse_distance,
                       .prefetch = config.zero.stage3_prefetch_bucket_size};
  options.deferred = model.deferred();
  options.frozen_as_int8 = config.zero.zero_quantized_nontrainable_weights;
  options.persistent_max_elements = config.zero.stage3_param_persistence_threshold;
  options.persistent_total_elements = config.zero.stage3_model_persistence_threshold;
  options.state_dtype = [this](const StateSpec& spec) { return state_dtype(spec, config); };
  options.widens = [this](const StateSpec& spec) { return widens_state(spec, config); };
  if (is_sharded(config, *communicator)) options.sharding = sharding_options();
  options.offload = offload_options();
  return options;
}

OffloadOptions EngineParts::offload_options() {
  OffloadOptions offload;
  const auto& optimizer_choice = config.optimizer_offload;
  const auto& parameter_choice = config.parameter_offload;
  if (optimizer_choice && optimizer) offload.states = std::make_shared<OffloadDevice>(create(*optimizer_choice));
  if (parameter_choice) {
    // One store where both sections mean the same one.
    const bool same = offload.states && optimizer_choice->type == parameter_choice->type &&
                      optimizer_choice->params == parameter_choice->params;
    offload.parameters = same ? offload.states : std::make_shared<OffloadDevice>(create(*parameter_choice));
  }
  offload.max_in_memory = parameters_in_host_memory(config) ? 0 : parameter_offload_in_force(config.zero).max_in_cpu;
  const OffloadOptimizerConfig section = optimizer_offload_in_force(config.zero);
  offload.buffer_count = section.buffer_count;
  offload.ratio = section.ratio;
  offload.slots = tile_slots(section);
  offload.read_ahead = section.pipeline_read.value_or(true);
  offload.write_behind = section.pipeline_write.value_or(true);
  offload.may_cut = manifest() != nullptr && manifest()->has_trait("elementwise") && manifest()->measures == 0;
  return offload;
}

void EngineParts::report_line(const std::string& text) { report_output(text); }

}  // namespace capstan
