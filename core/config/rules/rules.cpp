#include "core/config/rules/rules.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "core/config/rules/compatibility.hpp"
#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

constexpr const char* kStage = "zero_optimization.stage";

std::string stage_text(const Effective& values) {
  return "zero_optimization.stage " + std::to_string(values.integer(kStage));
}

void check_reduction(const Effective& values, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  const bool mean = values.text("gradient_allreduce_op") != "sum";
  if (stage >= 2 && values.flag("zero_optimization.reduce_scatter") && mean) {
    if (values.flag("prescale_gradients")) {
      problems.error("prescale_gradients", "does not go with reduce_scatter at " + stage_text(values) +
                                               ". Leave it out, or set reduce_scatter false.");
    }
    if (const double factor = values.number("gradient_predivide_factor", 1); factor != 1) {
      problems.error("gradient_predivide_factor",
                     "must be 1.0 with reduce_scatter at " + stage_text(values) + ", got " + shown(Json(factor)) + ".");
    }
  }
}

void check_zero(const Effective& values, const Config& config, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  if (values.flag("zero_optimization.legacy_stage1"))
    problems.error("zero_optimization.legacy_stage1",
                   "the first implementation of stage 1 is gone. Remove this key; stage 1 does the same.");
  if ((stage == 1 || stage == 2) && values.integer("zero_optimization.allgather_bucket_size") % 2 != 0) {
    problems.error("zero_optimization.allgather_bucket_size",
                   "must be even at stages 1 and 2, got " +
                       std::to_string(values.integer("zero_optimization.allgather_bucket_size")) + ".");
  }
  const std::int64_t secondary = values.integer("zero_optimization.zero_hpz_partition_size", 1),
                     world = config.batch.world_size;
  if (secondary >= 1 && world % std::min(secondary, world) != 0) {
    problems.error(
        "zero_optimization.zero_hpz_partition_size",
        std::to_string(secondary) + " does not divide the data-parallel size " + std::to_string(world) + ".");
  }
}

/// Some optimizers whose gradients the engine averages, for a message.
std::string optimizers_without_communication(const PluginIndex& plugins) {
  constexpr std::size_t kMost = 5;
  std::set<std::string> types;
  for (const auto& plugin : plugins.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.kind == "optimizer" && component.has_trait("elementwise")) types.insert(component.type);
    }
  }
  std::string text;
  std::size_t listed = 0;
  for (const std::string& type : types) {
    if (listed++ < kMost) text += (text.empty() ? "" : ", ") + type;
  }
  return types.size() > kMost ? text + ", .." : text;
}

void check_offloaded_optimizer(const Effective& values, const Config& config, const ComponentManifest& optimizer,
                               const PluginIndex& plugins, Problems& problems) {
  const auto& store = config.optimizer_offload;
  const bool by_section = offloads(values, "zero_optimization.offload_optimizer");
  if ((by_section || store) && !optimizer.has_trait("cpu")) {
    problems.error(by_section ? "zero_optimization.offload_optimizer" : "capstan.offload.optimizer",
                   "optimizer '" + config.optimizer->type +
                       "' does not declare the trait 'cpu', so it cannot update on the host. Remove the section, or "
                       "choose one that does.");
  }
  if (store && optimizer.has_trait("own_communication")) {
    problems.error(store->where, "optimizer '" + config.optimizer->type +
                                     "' does its own communication, for which it needs all of its state at once: the "
                                     "state cannot go to '" +
                                     store->type +
                                     "'. Leave the offload out, or choose one that leaves communication to the "
                                     "engine: " +
                                     optimizers_without_communication(plugins) + ".");
  }
}

/// Masters of 16 bits are shown in fp32 for one run of elements after the other.
void check_low_precision(const Config& config, const ComponentManifest& optimizer, const PluginIndex& plugins,
                         Problems& problems) {
  if (!config.precision.low_precision_masters || !optimizer.has_trait("own_communication")) return;
  problems.error(config.precision.compute == Precision::kFp16 ? "fp16.fp16_master_weights_and_grads"
                                                              : "bf16.bf16_master_weights_and_grads",
                 "optimizer '" + config.optimizer->type +
                     "' does its own communication, for which it needs all masters at once in fp32. Leave the key "
                     "out, or choose one that leaves communication to the engine: " +
                     optimizers_without_communication(plugins) + ".");
}

void check_optimizer_traits(const Effective& values, const Config& config, const PluginIndex& plugins,
                            Problems& problems) {
  if (!config.optimizer) return;
  const ComponentRef found = plugins.find("optimizer", config.optimizer->type, config.optimizer->device);
  if (!found) return;
  const std::int64_t stage = values.integer(kStage);
  if (found.component->has_trait("own_communication") && stage >= 2) {
    problems.error("optimizer.type",
                   "optimizer '" + config.optimizer->type + "' does its own communication and cannot run with " +
                       stage_text(values) +
                       ". Set the stage to 0 or 1, or choose one that leaves communication to the engine: " +
                       optimizers_without_communication(plugins) + ".");
  }
  if (found.component->has_trait("sparse_rows") && stage > 0) {
    problems.error("optimizer.type",
                   "'" + config.optimizer->type +
                       "' updates the rows of sparse gradients, which are kept at stage 0 alone and not with " +
                       stage_text(values) + ". Set the stage to 0, or choose another optimizer.");
  } else if (found.component->has_trait("sparse_rows") && !values.flag("sparse_gradients")) {
    problems.error("sparse_gradients",
                   "'" + config.optimizer->type + "' updates the rows of sparse gradients: set sparse_gradients true.");
  }
  check_offloaded_optimizer(values, config, *found.component, plugins, problems);
  check_low_precision(config, *found.component, plugins, problems);
  const bool fixed_scale = config.precision.scales_loss && config.precision.loss_scale != 0;
  if (fixed_scale && found.component->has_trait("needs_dynamic_loss_scale")) {
    problems.error(config.precision.scaled_by + ".loss_scale",
                   config.optimizer->type + " needs dynamic loss scaling: set it to 0.");
  }
}

/// A list of values, one a parameter group, against the most groups that there can be. Without rules in the file it is
/// the program that makes groups.
void check_group_lists(const Config& config, const PluginIndex& plugins, Problems& problems) {
  if (!config.scheduler || config.parameter_groups.empty()) return;
  const ComponentRef found = plugins.find("scheduler", config.scheduler->type);
  const std::size_t most = config.parameter_groups.size() + 1;
  for (const auto& [name, value] : config.scheduler->params.as_object()) {
    const auto spec = std::find_if(found.component->params.begin(), found.component->params.end(),
                                   [&, &key = name](const KeySpec& one) { return one.name == key; });
    if (spec == found.component->params.end() || !spec->per_group || value.size() <= most) continue;
    problems.error("scheduler.params." + name,
                   std::to_string(value.size()) +
                       " values, one a parameter group, but capstan.parameter_groups makes " + std::to_string(most) +
                       " groups at most.");
  }
}

void check_accumulation(const Effective& values, Problems& problems) {
  const Json* managed = values.find("managed_gradient_accumulation");
  const bool unmanaged = managed && managed->is_bool() && !managed->as_bool();
  if (unmanaged && values.flag("zero_optimization.overlap_comm") && values.integer(kStage) < 2) {
    problems.error("managed_gradient_accumulation", "false does not go with overlap_comm below ZeRO stage 2.");
  }
}

}  // namespace

void keep_gradients_whole(Effective& values, const ComponentManifest& optimizer, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  const bool cuts_gradients = stage == 3 || (stage > 0 && offloads(values, "zero_optimization.offload_optimizer"));
  if (!cuts_gradients || !values.flag("zero_optimization.reduce_scatter")) return;
  if (!optimizer.has_trait("needs_full_gradient")) return;
  values.derive("zero_optimization.reduce_scatter", false);
  problems.notice("zero_optimization.reduce_scatter", "is switched off, because " + optimizer.type +
                                                          " needs whole gradients at " + stage_text(values) +
                                                          (stage < 3 ? " with offload." : "."));
}

void settle_contiguous_memory(Effective& values, Problems& problems) {
  const std::string section = "activation_checkpointing", path = section + ".contiguous_memory_optimization";
  if (!values.flag(path)) return;
  if (values.flag("data_efficiency.data_routing.random_ltd.enabled")) {
    values.derive(path, false);
    problems.warning(path,
                     "is ignored with random-LTD, whose layers keep inputs of several shapes, and its slots are of one "
                     "shape. Remove this key.");
    return;
  }
  const Json* number = values.find(section + ".number_checkpoints");
  const bool partition = values.flag(section + ".partition_activations"), counts = number && !number->is_null();
  if (partition && counts) return;
  values.derive(path, false);
  problems.warning(path, std::string("is ignored without ") + (partition ? "" : "partition_activations") +
                             (!partition && !counts ? " and " : "") + (counts ? "" : "number_checkpoints") +
                             (counts ? ". Set it, or remove this key."
                                     : ". Set number_checkpoints to the number of layers that are computed again, or "
                                       "remove this key."));
}

void widen_buffers(Effective& values, const Config& config, const ComponentManifest& optimizer) {
  const std::string path = "zero_optimization.offload_optimizer.buffer_count";
  const std::int64_t least = least_buffers(config, optimizer);
  if (!offloads(values, "zero_optimization.offload_optimizer") || values.given(path)) return;
  if (values.integer(path, least) < least) values.derive(path, least);
}

void bound_read_ahead(ZeroConfig& zero) {
  if (!zero.offload_param || zero.offload_param->device == "none") return;
  const std::int64_t count = zero.offload_param->buffer_count, size = zero.offload_param->buffer_size;
  const std::int64_t bound = size > 0 && count > INT64_MAX / size ? INT64_MAX : count * size;
  zero.stage3_prefetch_bucket_size = std::min(zero.stage3_prefetch_bucket_size, bound);
}

void derive_values(Effective& values, Problems& problems) {
  const Json* overlap = values.find("zero_optimization.overlap_comm");
  if (!overlap || overlap->is_null())
    values.derive("zero_optimization.overlap_comm", Json(values.integer(kStage) == 3));
  if (offloads(values, "zero_optimization.offload_optimizer") &&
      !values.flag("zero_optimization.contiguous_gradients")) {
    values.derive("zero_optimization.contiguous_gradients", Json(true));
  }
  if (values.flag("zero_optimization.stage3_allgather_sequential")) {
    const std::string ahead = "zero_optimization.stage3_prefetch_bucket_size";
    if (values.given(ahead) && values.integer(ahead) != 1) {
      problems.notice(ahead, "is 1 beside stage3_allgather_sequential, which gathers parameters one by one.");
    }
    values.derive(ahead, Json(1));
  }
  if (values.flag("flops_profiler.enabled") && !values.flag("wall_clock_breakdown"))
    values.derive("wall_clock_breakdown", Json(true));
}

void check_rules(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  check_compatibility(values, problems);
  check_zero(values, config, problems);
  check_offload(values, config, plugins, problems);
  check_reduction(values, problems);
  check_optimizer_traits(values, config, plugins, problems);
  check_group_lists(config, plugins, problems);
  check_accumulation(values, problems);
  check_data_rules(values, config, problems);
  check_compression_rules(values, problems);
  check_other_sections(values, config, problems);
}

}  // namespace capstan
