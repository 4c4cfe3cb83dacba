#pragma once

#include <cstdint>
#include <functional>

#include "capstan/sdk/observer.hpp"

namespace capstan::layer_drop {

/// A layer's call in training.
struct LayerCall {
  std::int64_t step = 0, micro_step = 0;  // from 0
  std::uint32_t layer = 0;                // its place in the model, from 0
  double keep = 1;                        // the probability with which it runs
};

/// True when the layer runs.
using Keeps = std::function<bool(const LayerCall&)>;

/// Functions of the seed, the step, the micro-batch and the layer alone: all ranks leave out the same layers, which
/// ZeRO stage 3 needs, and so does a run that is resumed.
Keeps draws(std::uint64_t seed);

/// The section progressive_layer_drop (Zhang, He: Accelerating Training of Transformer-Based Language Models with
/// Progressive Layer Dropping, NeurIPS 2020, equations 4 and 5): layer i of L, counted from 1, runs with the
/// probability 1 - i/L (1 - theta), where theta of a step is (1 - theta_min) exp(-gamma t) + theta_min. As DeepSpeed's
/// engine updates it, t is 0 in the first two steps, and the number of steps done less one after these. A layer that
/// does not run gives its hidden states on, and its gradients are zero. Models see the numbers "progressive_layer_drop"
/// and "pld_theta". Evaluation leaves nothing out.
class ProgressiveLayerDrop {
 public:
  ProgressiveLayerDrop(sdk::Host host, const sdk::Params& params, Keeps keeps);

  void event(const capstan_event& event);
  void batch(sdk::Batch& batch);
  capstan_tensor layer(sdk::LayerRun& run);

 private:
  double theta_at(std::int64_t step) const;

  sdk::Host host_;
  Keeps keeps_;
  double theta_, gamma_;
  double now_ = 1;  // theta of the step under way
  std::int64_t step_ = 0, micro_step_ = 0;
  bool ran_ = false;  // a layer of the model's list was called
};

}  // namespace capstan::layer_drop
