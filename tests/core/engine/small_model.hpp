#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/engine/engine.hpp"

namespace capstan::testing_support {

void seed(std::uint64_t value);

/// Two layers, one of whose tensors never gets a gradient, one frozen, one buffer: y = tanh(x W1' + b1) W2'.
struct SmallModel {
  std::vector<NamedTensor> parameters;
  at::Tensor buffer;
  float loss_factor = 1;
  float loss_added = 0;               // to the loss: no gradient depends on it
  bool steep = false;                 // the loss has a term of value 0 whose gradient is NaN
  double dropout = 0;                 // the rate of dropout in the hidden layer
  std::vector<ModuleRecord> modules;  // that it shows

  explicit SmallModel(std::uint64_t weights_seed = 3);

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) const;

  static const capstan_model& table();
};

/// Batch number `index` of an endless, repeatable stream.
Batch batch_number(std::int64_t index, std::int64_t rows);

/// An engine around a SmallModel, fed from the stream.
class SmallRun {
 public:
  explicit SmallRun(const std::string& config_json, std::uint64_t weights_seed = 3,
                    std::vector<ModuleRecord> modules = {});

  double step();
  void steps(int count);

  PluginIndex plugins;
  SmallModel model;
  Engine engine;
  std::int64_t rows = 0;
  std::int64_t next_batch = 0;
};

}  // namespace capstan::testing_support
