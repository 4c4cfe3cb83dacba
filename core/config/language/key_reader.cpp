#include "core/config/language/key_reader.hpp"

#include <string_view>
#include <utility>

namespace capstan {
namespace {

/// What in this build acts on a key, by the beginning of its path; the longest that fits counts.
constexpr std::pair<std::string_view, const char*> kReaders[] = {
    {"train_batch_size", "the engine"},
    {"train_micro_batch_size_per_gpu", "the engine"},
    {"gradient_accumulation_steps", "the engine"},
    {"optimizer", "the engine, which builds the optimizer's plugin"},
    {"scheduler", "the engine, which builds the schedule's plugin"},
    {"gradient_clipping", "the engine"},
    {"prescale_gradients", "the engine"},
    {"gradient_predivide_factor", "the engine"},
    {"fp16", "the engine"},
    {"bf16", "the engine"},
    {"amp", "the engine"},
    {"torch_autocast", "the engine"},
    {"sparse_gradients", "the engine"},
    {"zero_optimization.stage", "the engine; one process runs every stage as stage 0"},
    {"zero_optimization.sub_group_size", "the engine"},
    {"zero_optimization.reduce_bucket_size", "the engine, with several processes"},
    {"zero_optimization.allgather_bucket_size", "the engine, with several processes"},
    {"zero_optimization.allgather_partitions", "the engine, with several processes"},
    {"zero_optimization.overlap_comm", "the engine, with several processes"},
    {"zero_optimization.grad_hooks", "the engine, with several processes"},
    {"zero_optimization.ignore_unused_parameters", "the engine"},
    {"zero_optimization.load_from_fp32_weights", "the engine, with several processes"},
    {"communication_data_type", "the engine, with several processes"},
    {"gradient_allreduce_op", "the engine, with several processes"},
    {"checkpoint", "the engine"},
    {"checkpoint.writer.decoupled", "the engine, which writes checkpoints while it trains"},
    {"datastates_ckpt", "the engine, which writes checkpoints while it trains"},
    {"steps_per_print", "the progress line"},
    {"wall_clock_breakdown", "the engine's timers"},
    {"memory_breakdown", "the engine"},
    {"dump_state", "the engine"},
    {"timers", "the progress line"},
    {"comms_logger", "the log of collectives"},
    {"data_types", "the engine"},
    {"elasticity", "the choice of the batch, and capstan elastic"},
    {"capstan", "the program"},
};

}  // namespace

std::string key_reader(const std::string& path, const PluginIndex& plugins) {
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      const bool inside = path == component.section || path.starts_with(component.section + ".");
      if (!component.section.empty() && inside) {
        return "the " + component.kind + " '" + component.type + "' (" + plugin.manifest.name + " " +
               plugin.manifest.version + ")";
      }
    }
  }
  const char* found = nullptr;
  std::size_t longest = 0;
  for (const auto& [prefix, text] : kReaders) {
    const bool inside = path == prefix || (path.starts_with(prefix) && path[prefix.size()] == '.');
    if (inside && prefix.size() >= longest) {
      found = text;
      longest = prefix.size();
    }
  }
  return found ? found : "";
}

}  // namespace capstan
