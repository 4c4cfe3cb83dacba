// Progressive layer drop with the recorded layers in the place of drawn ones: the plugin's own files, but for the draw.
#include <cmath>
#include <string>
#include <vector>

#include "progressive_layer_drop.hpp"

namespace capstan::layer_drop {
namespace {

/// A recorded run's `kept_layers`: by step and micro-step, "1011".
Keeps replays(const sdk::Params& params) {
  std::vector<std::vector<std::string>> kept;
  for (std::size_t step = 0; step < params.size("kept"); ++step) {
    kept.push_back(params.texts("/kept/" + std::to_string(step)));
  }
  return [kept](const LayerCall& call) {
    return kept.at(static_cast<std::size_t>(call.step)).at(static_cast<std::size_t>(call.micro_step)).at(call.layer) ==
           '1';
  };
}

class RecordedLayerDrop : public ProgressiveLayerDrop {
 public:
  RecordedLayerDrop(sdk::Host host, const sdk::Params& params) : ProgressiveLayerDrop(host, params, replays(params)) {
    for (std::size_t step = 0; step < params.size("recorded_theta"); ++step) {
      recorded_.push_back(params.numbers("/recorded_theta/" + std::to_string(step)).at(0));
    }
  }

  void batch(sdk::Batch& batch) {
    ProgressiveLayerDrop::batch(batch);
    const auto step = static_cast<std::size_t>(batch.number("global_step").value_or(0));
    const double ours = *batch.number("pld_theta"), theirs = recorded_.at(step);
    if (std::abs(ours - theirs) <= 1e-15) return;
    throw sdk::Error("step " + std::to_string(step) + ": pld_theta is " + std::to_string(ours) + ", recorded " +
                     std::to_string(theirs));
  }

 private:
  std::vector<double> recorded_;
};

}  // namespace
}  // namespace capstan::layer_drop

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::layer_drop::RecordedLayerDrop, "recorded_layer_drop">)
