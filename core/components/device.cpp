// Prepares the device that an engine trains on, and moves the model there.

#include "core/components/device.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "core/components/engine_parts.hpp"
#include "core/components/join_ranks.hpp"
#include "core/components/model_host.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/plugin_accelerator.hpp"
#include "core/memory/vector_math.hpp"

namespace capstan {
namespace {

at::Generator generator_of(at::Device device) { return at::globalContext().defaultGenerator(device); }

/// The device draws numbers of its own, from the seed of this process.
void seed_device(at::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(generator_of(at::kCPU).current_seed());
}

constexpr const char* kDevice = "capstan.run.device";

/// What a plugin's error leaves to do.
PluginError or_on_the_cpu(const PluginError& error) {
  return PluginError(std::string(error.what()) + "\n  --device cpu (" + kDevice + ") trains on the CPU.");
}

}  // namespace

void load_device(const Config& config, const PluginIndex& plugins) {
  if (config.device == "cpu") return;
  try {
    Registry(plugins, config.plugin_sha256).load(kDevice, "accelerator", config.device);
  } catch (const PluginError& error) {
    throw or_on_the_cpu(error);
  }
}

std::unique_ptr<Accelerator> EngineParts::build_accelerator() {
  prepare_vector_math();
  if (config.device == "cpu") return std::make_unique<CpuAccelerator>();
  std::unique_ptr<Accelerator> made;
  try {
    // What communicates outlives this engine, and so must its host table.
    made = std::make_unique<PluginAccelerator>(
        registry.create(kDevice, "accelerator", config.device, Json::object(), model_host()),
        communicator->local_rank());
  } catch (const PluginError& error) {
    throw or_on_the_cpu(error);
  }
  seed_device(made->device());
  if (made->links() == nullptr && communicator->size() > 1 && communicator->rank() == 0) {
    log::warning("device '" + config.device +
                 "' has no links between processes: what they exchange goes through host memory, which is slower.");
  }
  communicator->connect_devices(made->links(), made->device().type());
  return made;
}

Model EngineParts::move_to_device(Model built) const {
  if (accelerator->is_host()) return built;
  const at::NoGradGuard no_grad;
  const bool parts_only = holds_parts_only(config, *communicator);
  for (const auto* list : {&built.parameters(), &built.buffers()}) {
    for (const NamedTensor& named : *list) {
      at::Tensor tensor = named.tensor;
      // The parameter store takes a part of each, one after the other: the whole model may be larger than the device.
      if (parts_only && list == &built.parameters() && at::isFloatingType(tensor.scalar_type())) continue;
      tensor.set_data(tensor.to(accelerator->device()));
    }
  }
  return built;
}

std::vector<std::pair<std::string, at::Generator>> EngineParts::generators() const {
  std::vector<std::pair<std::string, at::Generator>> all = {{"cpu", generator_of(at::kCPU)}};
  if (!accelerator->is_host()) all.emplace_back(config.device, generator_of(accelerator->device()));
  return all;
}

}  // namespace capstan
