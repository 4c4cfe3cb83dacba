#include "core/registry/plugin_kind.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "capstan/plugin.h"

namespace capstan {
namespace {

// The build reads the names from the lines that begin with {.name (cmake/CapstanPluginKinds.cmake).
#define CAPSTAN_FUNCTION(Table, function) \
  { #function, offsetof(Table, function) }
// clang-format off
const std::vector<PluginKind> kKinds = {
    {.name = "optimizer",
     .functions = {CAPSTAN_FUNCTION(capstan_optimizer, update)},
     .path = "optimizer",
     .has_template = true,
     .page = "reference/plugins/optimizer.md"},
    {.name = "scheduler",
     .functions = {CAPSTAN_FUNCTION(capstan_scheduler, rate)},
     .path = "scheduler",
     .has_template = true,
     .page = "reference/plugins/scheduler.md"},
    {.name = "monitor",
     .functions = {CAPSTAN_FUNCTION(capstan_monitor, write)},
     .path = "capstan.monitors[]",
     .has_template = true,
     .page = "reference/plugins/monitor.md"},
    {.name = "model",
     .functions = {CAPSTAN_FUNCTION(capstan_model, visit),
                   CAPSTAN_FUNCTION(capstan_model, forward),
                   CAPSTAN_FUNCTION(capstan_model, training)},
     .path = "capstan.model",
     .has_template = true,
     .page = "reference/plugins/model.md"},
    {.name = "observer",  // its functions are all optional: what it attaches to, its manifest says
     .path = "capstan.observers[]",
     .has_template = true,
     .page = "reference/plugins/observer.md"},
    {.name = "offload",
     .functions = {CAPSTAN_FUNCTION(capstan_offload, register_buffer),
                   CAPSTAN_FUNCTION(capstan_offload, start),
                   CAPSTAN_FUNCTION(capstan_offload, poll)},
     .path = "capstan.offload.optimizer",
     .has_template = true,
     .page = "reference/plugins/offload.md"},
    {.name = "compression",  // the others are optional: what it compresses, its plan says
     .functions = {CAPSTAN_FUNCTION(capstan_compression, plan)},
     .path = "capstan.compressions[]",
     .has_template = true,
     .page = "reference/plugins/compression.md"},
    {.name = "dataset",
     .functions = {CAPSTAN_FUNCTION(capstan_dataset, open),
                   CAPSTAN_FUNCTION(capstan_dataset, describe),
                   CAPSTAN_FUNCTION(capstan_dataset, read)},
     .path = "capstan.data.dataset",
     .has_template = true,
     .page = "reference/plugins/dataset.md"},
    {.name = "sampler",
     .functions = {CAPSTAN_FUNCTION(capstan_sampler, start), CAPSTAN_FUNCTION(capstan_sampler, next)},
     .path = "capstan.data.sampler",
     .has_template = true,
     .page = "reference/plugins/sampler.md"},
    {.name = "metric",
     .functions = {CAPSTAN_FUNCTION(capstan_sample_metric, start), CAPSTAN_FUNCTION(capstan_sample_metric, measure)},
     .has_template = true,
     .page = "reference/plugins/metric.md"},
    {.name = "pacing",
     .functions = {CAPSTAN_FUNCTION(capstan_pacing, difficulty)},
     .path = "capstan.data.pacing",
     .has_template = true,
     .page = "reference/plugins/pacing.md"},
    {.name = "attention",  // layouts have two of its functions, kernels the others
     .path = "capstan.attention",
     .has_template = true,
     .page = "reference/plugins/attention.md"},
    {.name = "tuner",
     .functions = {CAPSTAN_FUNCTION(capstan_tuner, start),
                   CAPSTAN_FUNCTION(capstan_tuner, ask),
                   CAPSTAN_FUNCTION(capstan_tuner, tell)},
     .path = "capstan.tuner",
     .has_template = true,
     .page = "reference/plugins/tuner.md"},
    {.name = "accelerator",
     .functions = {CAPSTAN_FUNCTION(capstan_accelerator, count),
                   CAPSTAN_FUNCTION(capstan_accelerator, open),
                   CAPSTAN_FUNCTION(capstan_accelerator, stream),
                   CAPSTAN_FUNCTION(capstan_accelerator, memory),
                   CAPSTAN_FUNCTION(capstan_accelerator, record),
                   CAPSTAN_FUNCTION(capstan_accelerator, elapsed),
                   CAPSTAN_FUNCTION(capstan_accelerator, forget)},
     .page = "reference/plugins/accelerator.md"},
};
// clang-format on
#undef CAPSTAN_FUNCTION

}  // namespace

std::string_view PluginKind::missing_function(const void* table) const {
  const auto* bytes = static_cast<const unsigned char*>(table);
  std::uint32_t size = 0;  // every table begins with its struct_size
  std::memcpy(&size, bytes, sizeof size);
  for (const Function& function : functions) {
    void (*given)() = nullptr;
    if (size >= function.offset + sizeof given) std::memcpy(&given, bytes + function.offset, sizeof given);
    if (given == nullptr) return function.name;
  }
  return "";
}

const std::vector<PluginKind>& plugin_kinds() { return kKinds; }

const PluginKind* find_plugin_kind(std::string_view name) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const PluginKind& kind) { return kind.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

std::vector<std::string> plugin_kind_names(bool with_template) {
  std::vector<std::string> names;
  for (const PluginKind& kind : kKinds) {
    if (kind.has_template || !with_template) names.emplace_back(kind.name);
  }
  return names;
}

}  // namespace capstan
