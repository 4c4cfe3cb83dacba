#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/engine/engine.hpp"
#include "core/memory/deferred_values.hpp"

namespace capstan::testing {

/// An embedding, two linear layers, a few numbers that nothing compresses, and the embedding again as the layer that
/// gives the logits. Weights are cut on several ranks, at places where no group ends.
struct QuantizedNet {
  std::vector<NamedTensor> parameters;
  int fails = 0;                // the next so many forwards end with an exception, after the first layer
  double factor = 1;            // of the loss
  bool fails_backward = false;  // backward does, before that layer

  explicit QuantizedNet(std::uint64_t seed);

  /// ids, labels: [rows, tokens], int64.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels);
  static const capstan_model& table();
};

/// Rows [first, first + rows) of an endless, repeatable stream.
Batch net_batch(std::int64_t first, std::int64_t rows);

constexpr std::int64_t kNetRows = 4;  // of a micro-batch of all ranks

/// The sections of compression_training: weights of 8 and 4 bits, the embedding too, and inputs with static ranges.
extern const char* const kNetCompressions;

/// A configuration: `zero` is a section, `more` and `capstan` further keys of the file and of its section capstan.
std::string net_config(int ranks, const std::string& zero, const std::string& more = "",
                       const std::string& capstan = "", const std::string& compressions = kNetCompressions);

/// An engine around a QuantizedNet on one rank.
class NetRun {
 public:
  /// `deferred`: takes down how the net's values come to be.
  NetRun(const std::string& config, std::shared_ptr<Communicator> ranks, std::uint64_t seed = 1,
         const std::shared_ptr<DeferredValues>& deferred = nullptr);

  double step();
  std::vector<double> steps(int count);
  /// The micro-batches of the step under way, from the first on.
  std::function<Batch()> batches() const;
  double evaluated();
  /// All parameters in one dimension, as they are computed with.
  at::Tensor values();

  PluginIndex plugins;
  QuantizedNet net;
  Engine engine;
};

}  // namespace capstan::testing
