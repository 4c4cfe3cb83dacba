#include "progressive_layer_drop.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/random.hpp"

namespace capstan::layer_drop {

Keeps draws(std::uint64_t seed) {
  const sdk::RandomStream numbers(seed, "progressive_layer_drop");
  return [numbers](const LayerCall& call) {
    return numbers.uniform(static_cast<std::uint64_t>(call.step), static_cast<std::uint32_t>(call.micro_step),
                           call.layer) < call.keep;
  };
}

ProgressiveLayerDrop::ProgressiveLayerDrop(sdk::Host host, const sdk::Params& params, Keeps keeps)
    : host_(host), keeps_(std::move(keeps)), theta_(params.number("theta")), gamma_(params.number("gamma")) {}

void ProgressiveLayerDrop::event(const capstan_event& event) {
  if (event.kind == CAPSTAN_EVENT_INITIALIZED && host_.layer_names().empty()) {
    throw sdk::ConfigMistake(
        "progressive_layer_drop",
        "the model has no layers that could be left out: it neither lists \"layer_names\" in its description nor "
        "numbers modules of one class from 0. Take the section away, or name the layers.");
  }
  if (event.kind == CAPSTAN_EVENT_STEP_END && !ran_) {
    throw sdk::Error(
        "none of the model's layers ran through capstan::layer in the first step, so none can be left out. The model's "
        "author has to call its layers through capstan::layer.");
  }
}

double ProgressiveLayerDrop::theta_at(std::int64_t step) const {
  const auto t = static_cast<double>(std::max<std::int64_t>(step - 1, 0));
  return (1 - theta_) * std::exp(-gamma_ * t) + theta_;
}

void ProgressiveLayerDrop::batch(sdk::Batch& batch) {
  step_ = static_cast<std::int64_t>(batch.number("global_step").value_or(0));
  micro_step_ = static_cast<std::int64_t>(batch.number("micro_step").value_or(0));
  now_ = theta_at(step_);
  batch.set_number("progressive_layer_drop", 1);
  batch.set_number("pld_theta", now_);
  host_.record("Train/Samples/pld_theta", now_);
}

capstan_tensor ProgressiveLayerDrop::layer(sdk::LayerRun& run) {
  if (run.index() >= run.count()) return run.run(run.hidden());  // not of the model's list
  ran_ = true;
  const double keep = 1 - static_cast<double>(run.index() + 1) / run.count() * (1 - now_);
  if (keeps_({step_, micro_step_, run.index(), keep})) return run.run(run.hidden());
  return sdk::give(sdk::borrow(run.hidden()));
}

}  // namespace capstan::layer_drop
