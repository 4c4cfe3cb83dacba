#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/device.hpp"
#include "plugins/optimizers/onebit/error_feedback.hpp"
#include "plugins/optimizers/onebit/settings.hpp"

namespace capstan::optimizers {

struct LambGroup : OneBitGroup {
  explicit LambGroup(const sdk::Group& group)
      : OneBitGroup(group),
        max_coeff(group.number("max_coeff")),
        min_coeff(group.number("min_coeff")),
        coeff_beta(group.number("coeff_beta")),
        factor_max(group.number("factor_max")),
        factor_min(group.number("factor_min")),
        factor_threshold(group.number("factor_threshold")) {}

  double max_coeff, min_coeff, coeff_beta, factor_max, factor_min, factor_threshold;
};

/// 1-bit LAMB (Li et al. 2021): LAMB for freeze_step updates, which also learn each layer's mean trust ratio; then
/// momenta of all layers travel as one buffer at one bit an element, and the frozen ratio is scaled by how far a fresh
/// second moment, kept from what the exchange says of the gradient, has moved from the frozen one.
class OneBitLamb {
 public:
  OneBitLamb(std::unique_ptr<Device> device, const sdk::Host& host, const sdk::Params& params)
      : device_(std::move(device)),
        world_size_(host.world_size()),
        freeze_step_(params.integer("freeze_step")),
        feedback_("OneBitLamb", *device_, host, params, Buckets::Each::kModel),
        momenta_(*device_, kExpAvg),
        masks_(*device_) {
    check_settings("OneBitLamb", *device_, host, params);
    params.require(params.number("min_coeff") <= params.number("max_coeff"), "min_coeff", "must not exceed max_coeff.");
    params.require(params.number("factor_min") <= params.number("factor_max"), "factor_min",
                   "must not exceed factor_max.");
    const double needed = std::ceil(10.0 / (1.0 - params.number("coeff_beta")) - 1e-9);
    if (host.rank() == 0 && static_cast<double>(freeze_step_) < needed) {
      host.warning("freeze_step: " + std::to_string(freeze_step_) +
                   " updates are too few for the mean of the trust "
                   "ratios, which starts at 0; with this coeff_beta give it " +
                   std::to_string(static_cast<std::int64_t>(needed)) + " or more.");
    }
  }

  sdk::GradientMode gradient_mode(std::int64_t update_index) const {
    return compresses(update_index) && world_size_ > 1 ? sdk::GradientMode::kLocal : sdk::GradientMode::kMean;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    require_same(step, "freeze_step", static_cast<double>(freeze_step_));
    const auto groups = step.each_group([](const sdk::Group& group) { return LambGroup(group); });
    for (const sdk::Slot slot : slots) ++slot.counter(kStep);
    if (compresses(step.update_index())) {
      update_frozen(slots, step, groups);
    } else {
      update_adaptive(slots, step, groups);
    }
  }

  void save(const sdk::Sink& sink) const { sink.write("{\"errors\": " + feedback_.saved() + "}"); }
  void load(const sdk::Document& saved) {
    feedback_.load(saved);
    momenta_.forget();
  }

 private:
  enum State : std::size_t { kExpAvg, kExpAvgSq, kFreshSq, kStep, kMeanRatio, kLastFactor, kScaling, kCoefficient };
  using Groups = std::vector<LambGroup>;
  using Sums = std::vector<LayerSums>;

  Kernels& kernels() { return device_->kernels(); }
  bool compresses(std::int64_t update_index) const { return update_index >= freeze_step_; }

  void update_adaptive(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    device_->grow(sums_, slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      kernels().blend_and_measure(groups[slot.group()].numbers(step.grad_scale()), device_->grad(slot),
                                  device_->param(slot), device_->floats(slot, kExpAvg),
                                  device_->floats(slot, kExpAvgSq), slot.numel(), sums_.data() + i);
    }
    const Sums sums = sums_over_ranks(slots, step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const LambGroup& group = groups[slot.group()];
      const double ratio = trust_ratio(group, sums[i]);
      if (ratio != 1.0) {
        float& mean = slot.number(kMeanRatio);
        mean = static_cast<float>(group.coeff_beta * mean + (1.0 - group.coeff_beta) * ratio);
      }
      move(slot, group, ratio);
    }
  }

  void update_frozen(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    if (world_size_ > 1) momenta_.gather(slots, step.collectives());
    scale_layers(slots);
    if (world_size_ > 1) exchange(slots, step, groups);
    device_->grow(sums_, slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      refresh(slots, i, step, groups[slots[i].group()].numbers(step.grad_scale()));
    }
    const Sums sums = sums_over_ranks(slots, step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const LambGroup& group = groups[slot.group()];
      float& last = slot.number(kLastFactor);
      last = static_cast<float>(scaling_factor(group, sums[i], last));
      const float mean = slot.number(kMeanRatio);
      // A layer whose ratio was always 1 has no mean.
      move(slot, group, (mean == 0 ? 1.0 : static_cast<double>(mean)) * last);
    }
  }

  /// Before the first compressed momentum: factors that bring all layers' momenta to one size, since they share the
  /// scale of one bit, and the second moment that goes on adapting.
  void scale_layers(const sdk::Slots& slots) {
    const bool done = std::all_of(slots.begin(), slots.end(), [](const sdk::Slot& slot) {
      return slot.full_numel() == 0 || slot.number(kScaling) != 0;
    });
    if (done) return;
    std::vector<double> sizes = momentum_squares(slots);
    double sum = 0;
    int layers = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].full_numel() == 0) continue;
      sizes[i] = std::sqrt(sizes[i] / static_cast<double>(slots[i].full_numel()));
      sum += sizes[i];
      ++layers;
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const double mean = sum / std::max(layers, 1);
      slot.number(kScaling) = sizes[i] == 0 ? 1.0f : static_cast<float>(mean / sizes[i]);
      kernels().copy(device_->floats(slot, kExpAvgSq), slot.numel(), device_->floats(slot, kFreshSq));
    }
  }

  std::vector<double> momentum_squares(const sdk::Slots& slots) {
    const sdk::Array<double> squares = device_->array<double>(slots.size());
    const std::size_t bytes = squares.size() * sizeof(double);
    kernels().zero(squares.data(), bytes);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      kernels().measure(momenta_.whole(slots, i), static_cast<std::size_t>(slots[i].full_numel()), squares.data() + i);
    }
    std::vector<double> out(slots.size());
    kernels().download(squares.data(), bytes, out.data());
    return out;
  }

  void exchange(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    feedback_.begin(slots, step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      kernels().add_blended(groups[slot.group()].numbers(step.grad_scale()).moments, momenta_.whole(slots, i),
                            device_->grad(slot), slot.number(kScaling), feedback_.worker_error(i),
                            static_cast<std::size_t>(slot.full_numel()), feedback_.squares(i));
    }
    feedback_.exchange(step);
  }

  /// Takes a layer's new momentum over, and measures this rank's part.
  void refresh(const sdk::Slots& slots, std::size_t index, const sdk::Step& step, const AdaptiveNumbers& numbers) {
    const sdk::Slot slot = slots[index];
    const auto whole_count = static_cast<std::size_t>(slot.full_numel());
    device_->grow(averaged_, whole_count);
    float* m = device_->floats(slot, kExpAvg);
    float scaling = 1;
    if (world_size_ > 1) {
      scaling = slot.number(kScaling);
      feedback_.buckets().average(index, whole_count, averaged_.data());
    } else {
      kernels().copy(m, slot.numel(), averaged_.data());
      kernels().blend(numbers.moments, device_->grad(slot), averaged_.data(), slot.numel());
    }
    masks_.apply(slot, step, averaged_.data());
    kernels().refresh_and_measure(numbers, scaling, averaged_.data() + slot.offset(), device_->param(slot),
                                  device_->floats(slot, kExpAvgSq), m, device_->floats(slot, kFreshSq), slot.numel(),
                                  sums_.data() + index);
    if (float* whole = momenta_.whole(slots, index); whole != m) {
      kernels().divide(averaged_.data(), scaling, whole_count, whole);
    }
  }

  /// Norms are those of whole layers, also where ranks own parts of them.
  Sums sums_over_ranks(const sdk::Slots& slots, const sdk::Step& step) {
    Sums sums(slots.size());
    kernels().download(sums_.data(), sums.size() * sizeof(LayerSums), sums.data());
    if (world_size_ == 1 || !momenta_.sharded(slots, step.collectives())) return sums;
    constexpr std::size_t kNumbers = 4;
    std::vector<double> own, all(kNumbers * sums.size() * world_size_);
    for (const LayerSums& part : sums) {
      own.insert(own.end(), {part.weights, part.gradients, part.directions, static_cast<double>(part.factor)});
    }
    step.collectives().all_gather<double>(own, all);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = {};
      for (std::size_t rank = 0; rank < world_size_; ++rank) {
        const double* part = all.data() + rank * own.size() + i * kNumbers;
        sums[i].add({part[0], part[1], part[2], static_cast<float>(part[3])});
      }
    }
    return sums;
  }

  static double trust_ratio(const LambGroup& group, const LayerSums& sums) {
    if (sums.weights == 0 || sums.directions == 0) return 1.0;
    return std::min(std::max(std::sqrt(sums.weights / sums.directions), group.min_coeff), group.max_coeff);
  }

  /// The rate of change is bounded last: the factor leaves its bounds only where it has been outside before.
  static double scaling_factor(const LambGroup& group, const LayerSums& sums, double last) {
    double factor = static_cast<double>(sums.factor);
    if (group.weight_decay > 0) {
      const double share = sums.directions == 0 ? 1.0 : std::min(1.0, std::sqrt(sums.gradients / sums.directions));
      factor = factor * share + (1.0 - share);
    }
    factor = std::min(std::max(factor, group.factor_min), group.factor_max);
    return std::min(std::max(factor, last * (1.0 - group.factor_threshold)), last * (1.0 + group.factor_threshold));
  }

  void move(const sdk::Slot& slot, const LambGroup& group, double coefficient) {
    slot.number(kCoefficient) = static_cast<float>(coefficient);
    StepRates rates = group.rates();
    rates.lr = static_cast<float>(group.lr * coefficient);
    kernels().frozen_step(rates, device_->floats(slot, kExpAvg), device_->floats(slot, kExpAvgSq), device_->param(slot),
                          slot.numel());
  }

  std::unique_ptr<Device> device_;
  std::size_t world_size_;
  std::int64_t freeze_step_;
  ErrorFeedback feedback_;
  WholeMomenta momenta_;
  Masks masks_;
  sdk::Array<float> averaged_;  // the averaged values of one layer at a time
  sdk::Array<LayerSums> sums_;  // sums over this rank's parts, on the device
};

}  // namespace capstan::optimizers
