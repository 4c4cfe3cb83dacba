#include "core/precision/loss_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.hpp"

namespace capstan {

LossScaler::LossScaler(const PrecisionConfig& precision)
    : floor_(precision.min_loss_scale),
      ceiling_(precision.max_loss_scale),
      section_(precision.scaled_by),
      window_(precision.loss_scale_window),
      configured_hysteresis_(precision.hysteresis),
      refill_each_step_(precision.consecutive_hysteresis),
      hysteresis_(precision.hysteresis) {
  if (!precision.scales_loss) return;
  dynamic_ = precision.loss_scale == 0;
  scale_ = dynamic_ ? std::min(std::exp2(precision.initial_scale_power), ceiling_) : precision.loss_scale;
}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    if (hysteresis_ == 1) {
      if (scale_ == floor_) {
        throw RuntimeFault(section_ + ": gradients overflow at the smallest loss scale, " + std::to_string(floor_) +
                           (section_ == "torch_autocast" ? "" : " (" + section_ + ".min_loss_scale)") +
                           ", so it cannot be lowered and every step would be skipped. Lower the "
                           "learning rate, or train with bf16.enabled instead.");
      }
      scale_ = std::max(scale_ / 2, floor_);
    } else {
      --hysteresis_;
    }
    last_overflow_ = step_;
  } else {
    if (refill_each_step_) hysteresis_ = configured_hysteresis_;
    const std::int64_t stable = step_ - last_overflow_ - 1;
    if (stable > 0 && stable % window_ == 0) {
      hysteresis_ = configured_hysteresis_;
      scale_ = std::min(scale_ * 2, ceiling_);
    }
  }
  ++step_;
}

Json LossScaler::save() const {
  Json state = Json::object();
  state["scale"] = scale_;
  state["step"] = step_;
  state["last_overflow"] = last_overflow_;
  state["hysteresis"] = hysteresis_;
  return state;
}

LossScaler::State LossScaler::read(const StateReader& state) {
  constexpr std::int64_t kMostSteps = 1'000'000'000'000;
  const double scale = state.number("scale");
  if (scale <= 0) state.refuse("scale", "a positive number");
  return {scale, state.integer("step", 0, kMostSteps), state.integer("last_overflow", -1, kMostSteps),
          static_cast<int>(state.integer("hysteresis", 1, 1'000'000'000))};
}

void LossScaler::restore(const State& state) {
  if (!dynamic_) return;
  scale_ = state.scale;
  step_ = state.step;
  last_overflow_ = state.last_overflow;
  hysteresis_ = state.hysteresis;
}

}  // namespace capstan
