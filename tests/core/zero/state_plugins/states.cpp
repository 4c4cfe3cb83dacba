// Optimizers that use every kind of state, and sums over the whole model.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"

namespace {

namespace sdk = capstan::sdk;

double lr_of(const sdk::Slot& slot, const sdk::Step& step) { return step.group(slot.group()).number("lr"); }

/// Descent that is drawn back to where it started. What it writes to its states depends on elements and blocks of the
/// whole parameter alone, and on their values before.
class StateKinds {
 public:
  StateKinds(const sdk::Host&, const sdk::Params& params)
      : out_of_bounds_(params.boolean("out_of_bounds")), not_there_(params.boolean("not_there")) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    for (const sdk::Slot slot : slots) update(slot, step);
  }

 private:
  void update(const sdk::Slot& slot, const sdk::Step& step) const {
    if (out_of_bounds_) slot.floats(10);
    if (not_there_ && !slot.has_state(4)) slot.floats(4);
    float *weights = slot.param(), *start = slot.floats(3), *peaks = slot.floats(2);
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      const float gradient = sdk::value_at(slot.grad(), i) * static_cast<float>(step.grad_scale());
      weights[i] -= static_cast<float>(lr_of(slot, step)) * (gradient + 0.1f * (weights[i] - start[i]));
      slot.bytes(0)[i] = static_cast<std::uint8_t>(slot.bytes(0)[i] + 1 + (slot.offset() + i) % 7);
      slot.signed_bytes(1)[i] = static_cast<std::int8_t>(slot.signed_bytes(1)[i] - 1);
      peaks[i / 64] = std::max(peaks[i / 64], std::fabs(weights[i]));
    }
    slot.number(8) = static_cast<float>(slot.role());
    for (std::size_t i = 0; slot.has_state(4) && i < slot.numel(); ++i) slot.floats(4)[i] += weights[i];
    if (slot.has_state(7)) {
      for (std::size_t i = 0; i < slot.blocks(32768); ++i) ++slot.signed_bytes(7)[i];
    }
  }

  bool out_of_bounds_, not_there_;
};

/// Descent along the gradient of the whole model, brought to length 1.
class ModelMeasures {
 public:
  static constexpr std::size_t kMeasuresModel = 2;

  ModelMeasures(const sdk::Host&, const sdk::Params& params) : spoilt_(params.boolean("spoilt")) {}

  void measure_model(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials) {
    for (std::size_t s = 0; s < slots.size(); ++s) {
      for (std::size_t i = 0; i < slots[s].numel(); ++i) {
        const double gradient = sdk::value_at(slots[s].grad(), i) * step.grad_scale();
        partials[2 * s] += gradient * gradient;
      }
      partials[2 * s + 1] = spoilt_ ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(slots[s].numel());
    }
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const double length = std::sqrt(step.model_total(0));
    for (const sdk::Slot slot : slots) {
      slot.number(0) = static_cast<float>(step.model_total(1));
      const auto factor = static_cast<float>(lr_of(slot, step) * step.grad_scale() / length);
      for (std::size_t i = 0; i < slot.numel(); ++i) slot.param()[i] -= factor * sdk::value_at(slot.grad(), i);
    }
  }

 private:
  bool spoilt_;
};

/// Measures a number that is not finite.
class Measures {
 public:
  static constexpr std::size_t kMeasures = 1;

  Measures(const sdk::Host&, const sdk::Params&) {}
  void measure(const sdk::Slots&, const sdk::Step&, std::span<double> partials) {
    std::fill(partials.begin(), partials.end(), std::numeric_limits<double>::infinity());
  }
  void update(const sdk::Slots&, const sdk::Step&) {}
};

/// Descent along each parameter's whole gradient, brought to length 1.
class WholeGradients {
 public:
  WholeGradients(const sdk::Host&, const sdk::Params&) {}
  void update(const sdk::Slots& slots, const sdk::Step& step) {
    for (const sdk::Slot slot : slots) {
      if (slot.numel() != slot.full_numel()) slot.fail("is in parts.");
      double length = 0;
      for (std::size_t i = 0; i < slot.numel(); ++i) length += std::pow(sdk::value_at(slot.grad(), i), 2);
      if (length == 0) continue;
      const auto factor = static_cast<float>(lr_of(slot, step) / std::sqrt(length));
      for (std::size_t i = 0; i < slot.numel(); ++i) slot.param()[i] -= factor * sdk::value_at(slot.grad(), i);
    }
  }
};

class NoFunction {
 public:
  NoFunction(const sdk::Host&, const sdk::Params&) {}
  void update(const sdk::Slots&, const sdk::Step&) {}
};

class NoKey {
 public:
  static constexpr std::size_t kMeasuresModel = 1;

  NoKey(const sdk::Host&, const sdk::Params&) {}
  void measure_model(const sdk::Slots&, const sdk::Step&, std::span<double>) {}
  void update(const sdk::Slots&, const sdk::Step&) {}
};

}  // namespace

CAPSTAN_PLUGIN(&sdk::optimizer<StateKinds, "StateKinds">, &sdk::optimizer<ModelMeasures, "ModelMeasures">,
               &sdk::optimizer<Measures, "Measures">, &sdk::optimizer<WholeGradients, "WholeGradients">,
               &sdk::optimizer<NoFunction, "NoFunction">, &sdk::optimizer<NoKey, "NoKey">)
