#include "core/run/run_model.hpp"

#include <ATen/Context.h>
#include <malloc.h>

#include <cstdint>
#include <mutex>

#include "core/comm/communicator.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/model/deferred_model.hpp"
#include "core/registry/registry.hpp"

namespace capstan {
namespace {

/// Seeds the generator of the host alone, from which the engine seeds that of its device: at::manual_seed would begin
/// to use every GPU of the machine.
void seed_host(std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

/// A model built by `build`; at ZeRO stage 3 its large parameters have no memory until the engine takes them.
template <class Build>
Model seeded(const LoadedConfig& loaded, const Build& build) {
  seed_values(loaded);
  // Where memory is short, a large block goes back to the system when it is freed: in the heap it would leave a hole.
  if (loaded.config.parameter_offload) mallopt(M_MMAP_THRESHOLD, 512 << 10);
  Model model = loaded.config.zero.stage == 3 ? without_values(build) : build();
  seed_rank(loaded);
  return model;
}

}  // namespace

void seed_values(const LoadedConfig& loaded) { seed_host(loaded.config.run.seed); }

void seed_rank(const LoadedConfig& loaded) {
  const int rank = loaded.communicator->rank();
  if (rank > 0) seed_host(loaded.config.run.seed + 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(rank));
}

Model build_model(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (!config.run.model) {
    throw ConfigError(
        "capstan.model: not given. Name a model with --model, for instance --model gpt:tiny, or in the "
        "configuration: \"capstan\": {\"model\": \"gpt:tiny\"}. 'capstan plugins list' shows the models.");
  }
  return seeded(loaded, [&] {
    Registry registry(loaded.plugins, config.plugin_sha256);
    const ComponentChoice& choice = *config.run.model;
    return Model(registry.create(choice.where, "model", choice.type, choice.params, model_host()));
  });
}

Model build_model(const RunParts& parts, const LoadedConfig& loaded) {
  if (!parts.model) return build_model(loaded);
  return seeded(loaded, [&] { return parts.model(loaded); });
}

}  // namespace capstan
