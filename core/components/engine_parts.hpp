#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/components/host.hpp"
#include "core/components/observers.hpp"
#include "core/components/optimizer.hpp"
#include "core/components/progress.hpp"
#include "core/components/schedule.hpp"
#include "core/compression/compressions.hpp"
#include "core/data/sampler.hpp"
#include "core/memory/accelerator.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/parameters/slot_blocks.hpp"
#include "core/precision/loss_scaler.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// The parts that an engine is built of before its first step: the model on its device, the components that the
/// configuration names, and the store of the parameters. Members are built in this order and destroyed in the reverse
/// one. [engine]
struct EngineParts {
  EngineParts(Model model, const Config& config, const PluginIndex& plugins,
              std::shared_ptr<Communicator> communicator);
  EngineParts(const EngineParts&) = delete;

  Component create(const ComponentChoice& choice);
  /// The optimizer's manifest; null when there is no optimizer.
  const ComponentManifest* manifest() const { return optimizer ? &optimizer->manifest() : nullptr; }
  /// The random number generators of this rank, by the name that checkpoints know them by.
  std::vector<std::pair<std::string, at::Generator>> generators() const;
  /// Prints a line, on rank 0.
  void report_line(const std::string& text);
  /// The names of the numbers that a program may set; see Engine::group_numbers().
  std::vector<std::string> group_numbers() const;
  /// Throws RuntimeFault for a number that the group's optimizer lacks, does not allow, or cannot change any more.
  void check_group_number(std::size_t group, const std::string& name, const std::vector<double>& values) const;

  std::shared_ptr<Communicator> communicator;
  Config config;
  std::function<void(std::string_view)> report_output;  // before what communicates, which may print
  PluginIndex plugins;
  EngineHostContext host_context;
  capstan_host host;
  Registry registry;
  std::unique_ptr<Accelerator> accelerator;
  Model model;
  Observers observers;
  Compressions compressions;
  ParameterGroups groups;
  std::optional<Optimizer> optimizer;
  Schedule schedule;
  ParameterStore store;
  LossScaler scaler;
  std::optional<Sampler> sampler;  // of the order of samples
  Progress progress;

 private:
  Model join(Model model);
  std::unique_ptr<Accelerator> build_accelerator();
  /// Moves parameters and buffers to the device.
  Model move_to_device(Model model) const;
  Compressions build_compressions();
  /// Throws ConfigError where compressions use gradients that the optimizer averages itself.
  void refuse_gradient_uses(const Compressions& made) const;
  ParameterStore::Options store_options();
  OffloadOptions offload_options();
  ShardingOptions sharding_options();
  /// How each trainable parameter's gradient is sent between ranks; empty: all alike.
  std::vector<GradientTransport> gradient_transports() const;
};

}  // namespace capstan
