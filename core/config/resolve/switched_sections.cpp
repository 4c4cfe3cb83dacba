#include "core/config/resolve/switched_sections.hpp"

#include <strings.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace capstan {
namespace {

// clang-format off
constexpr SwitchedSection kSections[] = {
    {"tensorboard.enabled", "tensorboard", "monitor", true},
    {"wandb.enabled", "wandb", "monitor", true},
    {"csv_monitor.enabled", "csv_monitor", "monitor", true},
    {"comet.enabled", "comet", "monitor", true},
    {"flops_profiler.enabled", "flops_profiler", "observer", true},
    {"curriculum_learning.enabled", "curriculum_learning", "observer", true},
    {"capstan.recompute", "activation_checkpointing", "observer", true},
    {"pipeline.activation_checkpoint_interval", "activation_checkpointing", "observer", true, 0},
    {"activation_checkpointing.partition_activations", "activation_checkpointing", "observer", true, 1, true},
    {"activation_checkpointing.cpu_checkpointing", "activation_checkpointing", "observer", true, 1, true},
    {"activation_checkpointing.contiguous_memory_optimization", "activation_checkpointing", "observer", true, 1, true},
    {"activation_checkpointing.synchronize_checkpoint_boundary", "activation_checkpointing", "observer", true, 1, true},
    {"activation_checkpointing.profile", "activation_checkpointing", "observer", true, 1, true},
    {"progressive_layer_drop.enabled", "progressive_layer_drop", "observer", true},
    {"quantize_training.eigenvalue.enabled", "quantize_training.eigenvalue", "observer", true},
    {"nebula.enabled", "nebula", "observer"},
    {"hybrid_engine.enabled", "hybrid_engine", "observer"},
    {"compile.deepcompile", "compile", "observer"},
    {"weight_quantization.enabled", "weight_quantization", "observer"},
    {"tensor_parallel.autotp_size", "tensor_parallel", "observer"},
    {"sequence_parallel_size", "sequence_parallel_size", "observer"},
    {"pipeline.stages", "pipeline", "observer"},
    {"expert_parallel.enabled", "expert_parallel", "observer"},
    {"zero_optimization.zenflow", "zero_optimization.zenflow", "observer"},
    {"data_efficiency.data_sampling.curriculum_learning.enabled",
     "data_efficiency.data_sampling.curriculum_learning", "sampler", true},
    {"data_efficiency.data_sampling.dynamic_batching.enabled",
     "data_efficiency.data_sampling.dynamic_batching", "observer"},
    {"data_efficiency.data_routing.random_ltd.enabled", "data_efficiency.data_routing.random_ltd", "observer", true},
    {"compression_training.weight_quantization.shared_parameters.enabled",
     "compression_training.weight_quantization", "compression", true},
    {"compression_training.activation_quantization.shared_parameters.enabled",
     "compression_training.activation_quantization", "compression", true},
    {"compression_training.sparse_pruning.shared_parameters.enabled",
     "compression_training.sparse_pruning", "compression", true},
    {"compression_training.row_pruning.shared_parameters.enabled", "compression_training.row_pruning", "compression", true},
    {"compression_training.head_pruning.shared_parameters.enabled", "compression_training.head_pruning", "compression", true},
    {"compression_training.channel_pruning.shared_parameters.enabled",
     "compression_training.channel_pruning", "compression", true},
};
// clang-format on

constexpr HandedOn kHandedOn[] = {
    {"capstan.recompute", "activation_checkpointing", ""},
    {"pipeline.activation_checkpoint_interval", "activation_checkpointing", "every"},
    {"capstan.run.seed", "progressive_layer_drop", "seed"},
    {"capstan.run.seed", "quantize_training.eigenvalue", "seed"},
};

bool is_on(const Json* value, std::int64_t above = 1) {
  if (!value || value->is_null()) return false;
  if (value->is_bool()) return value->as_bool();
  if (value->is_integer()) return value->as_integer() > above;
  return value->is_object();
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

/// True when a section of the language is another one or lies in it.
bool inside(std::string_view section, std::string_view around) {
  return section.starts_with(around) && (section.size() == around.size() || section[around.size()] == '.');
}

/// True when a component's type is the name of the innermost part of a section, its method.
bool is_method(const ComponentManifest& component, std::string_view section) {
  const std::string_view method = section.substr(section.rfind('.') + 1);
  return same_name(component.type, method) ||
         std::any_of(component.aliases.begin(), component.aliases.end(),
                     [&](const std::string& alias) { return same_name(alias, method); });
}

/// Whether a component of that kind may carry a section out: observers did so before there were compressions.
bool is_fit_kind(const std::string& kind, const SwitchedSection& wanted) {
  return kind == wanted.kind ||
         (inside(wanted.section, "compression_training") && (kind == "observer" || kind == "compression"));
}

/// How closely a component fits a section; 0: not at all.
std::size_t fit(const ComponentManifest& component, const SwitchedSection& wanted) {
  if (component.section.empty() || !is_fit_kind(component.kind, wanted) || !inside(wanted.section, component.section))
    return 0;
  if (component.section == wanted.section) return 2 * component.section.size() + 2;
  const bool one_method = std::any_of(std::begin(kSections), std::end(kSections), [&](const SwitchedSection& other) {
    return other.section != component.section && inside(other.section, component.section) &&
           is_method(component, other.section);
  });
  if (one_method && !is_method(component, wanted.section)) return 0;
  return 2 * component.section.size() + (one_method ? 1 : 0);
}

}  // namespace

std::span<const SwitchedSection> switched_sections() { return kSections; }
std::span<const HandedOn> handed_on() { return kHandedOn; }

bool is_on(const Effective& values, const SwitchedSection& section) {
  const std::string path = section.switch_path;
  if (!is_on(values.find(path), section.above)) return false;
  for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    const Json* around = values.find(path.substr(0, dot) + ".enabled");
    if (around && !is_on(around)) return false;
  }
  return true;
}

const ComponentManifest* carrier(const PluginIndex& plugins, const SwitchedSection& section) {
  const ComponentManifest* best = nullptr;
  for (const IndexedPlugin& plugin : plugins.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (fit(component, section) > (best ? fit(*best, section) : 0)) best = &component;
    }
  }
  return best;
}

bool has_switch(const ComponentManifest& component) {
  return std::any_of(std::begin(kSections), std::end(kSections),
                     [&](const SwitchedSection& section) { return fit(component, section) > 0; });
}

}  // namespace capstan
