#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/engine/engine.hpp"
#include "core/memory/deferred_values.hpp"

namespace capstan::test {

/// A model of random parameters: tiny, large, without dimensions or elements, not contiguous, two in one storage, one
/// frozen, one never used, one used by some samples only, one used twice. The loss is a mean over rows, so that ranks'
/// means add up to that of the whole batch.
struct MixedModel {
  std::vector<NamedTensor> parameters;
  std::string description = "mixed";
  std::vector<ModuleRecord> modules;       // that it shows
  bool skips = true;                       // "sometimes" is left out where the batch's first number says so
  double loss_factor = 1, loss_added = 0;  // no gradient depends on what is added
  std::optional<double> root_of;           // the loss has a term of this square root, whose gradient is NaN at 0
  bool noisy = false;                      // the loss depends on a random number
  bool fails = false;                      // forward ends with an exception, half way
  std::function<void()> in_backward;       // called half way; null: nothing is

  explicit MixedModel(std::uint64_t seed, std::int64_t largest = 100'000);

  /// x: [rows, columns].
  at::Tensor loss(const at::Tensor& x) const;

  static const capstan_model& table();
};

/// Rows [first, first + rows) of an endless, repeatable stream.
Batch rows_of_stream(std::int64_t first, std::int64_t rows);

/// An engine around a MixedModel on one rank.
class MixedRun {
 public:
  /// `deferred`: takes down how the model's values come to be. `change`: of the configuration, once it is read.
  MixedRun(
      const std::string& config_json, std::shared_ptr<Communicator> ranks, std::uint64_t seed = 1,
      std::int64_t largest = 100'000, std::vector<ModuleRecord> modules = {},
      const std::shared_ptr<DeferredValues>& deferred = nullptr,
      const std::function<void(Config&)>& change = [](Config&) {});

  double step();
  std::vector<double> steps(int count);
  /// All parameters in one dimension, as they are computed with.
  at::Tensor values();

  PluginIndex plugins;
  MixedModel model;
  Engine engine;
};

}  // namespace capstan::test
