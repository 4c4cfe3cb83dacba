#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/device.hpp"
#include "plugins/optimizers/onebit/error_feedback.hpp"
#include "plugins/optimizers/onebit/settings.hpp"
#include "plugins/optimizers/zero_one_adam/zero_one_schedule.hpp"

namespace capstan::optimizers {

/// 0/1 Adam (Lu et al. 2022). First the second moment adapts in growing intervals, and gradients in between travel at
/// one bit an element; then it stands still, every rank steps by itself, and in growing intervals the ranks average
/// the way that they have gone, at one bit an element.
class ZeroOneAdam {
 public:
  using Kind = ZeroOneSchedule::Kind;

  ZeroOneAdam(std::unique_ptr<Device> device, const sdk::Host& host, const sdk::Params& params)
      : device_(std::move(device)),
        world_size_(host.world_size()),
        settings_{params.integer("var_freeze_step"), params.integer("var_update_scaler"),
                  params.integer("local_step_scaler"), params.integer("local_step_clipper")},
        schedule_(settings_),
        feedback_("ZeroOneAdam", *device_, host, params, Buckets::Each::kParameter),
        masks_(*device_) {
    check_settings("ZeroOneAdam", *device_, host, params);
  }

  sdk::GradientMode gradient_mode(std::int64_t update_index) const {
    if (world_size_ == 1) return sdk::GradientMode::kMean;
    ZeroOneSchedule then = schedule_;
    then.go_to(update_index);
    return then.kind() == Kind::kFull ? sdk::GradientMode::kMean : sdk::GradientMode::kLocal;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    check(slots, step);
    const bool was_frozen = schedule_.counters().frozen;
    schedule_.go_to(step.update_index());
    for (const sdk::Slot slot : slots) ++slot.counter(kStep);
    const auto groups = step.each_group([](const sdk::Group& group) { return OneBitGroup(group); });
    if (schedule_.kind() == Kind::kFull) {
      return device_->adaptive_update(slots, {kExpAvg, kExpAvgSq}, numbers_of(groups, step.grad_scale()));
    }
    if (world_size_ > 1) feedback_.begin(slots, step);
    if (schedule_.kind() == Kind::kCompressed) return update_compressed(slots, step, groups);
    // The errors are those of gradients; from here on they will be those of ways.
    if (!was_frozen && world_size_ > 1) feedback_.zero_errors();
    update_locally(slots, step, groups);
    if (schedule_.exchanges()) join(slots, step);
  }

  void synchronize(const sdk::Slots& slots, const sdk::Step& step) {
    if (std::none_of(rate_sums_.begin(), rate_sums_.end(), [](double sum) { return sum != 0; })) return;
    if (world_size_ > 1) feedback_.begin(slots, step);
    join(slots, step);
  }

  void save(const sdk::Sink& sink) const {
    const auto& counters = schedule_.counters();
    sink.write("{\"updates\": " + std::to_string(counters.updates) + ", \"var_interval\": " +
               std::to_string(counters.var_interval) + ", \"var_counter\": " + std::to_string(counters.var_counter) +
               ", \"local_step_interval\": " + std::to_string(counters.local_interval) +
               ", \"local_step_counter\": " + std::to_string(counters.local_counter) +
               ", \"frozen\": " + (counters.frozen ? "true" : "false") + ", \"errors\": " + feedback_.saved() + "}");
  }

  void load(const sdk::Document& saved) {
    schedule_.restore({saved.integer("updates"), saved.integer("var_interval"), saved.integer("var_counter"),
                       saved.integer("local_step_interval"), saved.integer("local_step_counter"),
                       saved.boolean("frozen")});
    feedback_.load(saved);
    rate_sums_.clear();
  }

 private:
  enum State : std::size_t { kExpAvg, kExpAvgSq, kWay, kCommon, kStep };
  using Groups = std::vector<OneBitGroup>;

  Kernels& kernels() { return device_->kernels(); }

  void check(const sdk::Slots& slots, const sdk::Step& step) const {
    require_same(step, "var_freeze_step", static_cast<double>(settings_.var_freeze_step));
    require_same(step, "var_update_scaler", static_cast<double>(settings_.var_update_scaler));
    require_same(step, "local_step_scaler", static_cast<double>(settings_.local_step_scaler));
    require_same(step, "local_step_clipper", static_cast<double>(settings_.local_step_clipper));
    for (const sdk::Slot slot : slots) {
      if (slot.numel() != slot.full_numel()) {
        slot.fail("ZeroOneAdam steps on every rank by itself, so it needs whole parameters; this rank was given " +
                  std::to_string(slot.numel()) + " of " + std::to_string(slot.full_numel()) + " elements.");
      }
    }
  }

  void update_compressed(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    if (world_size_ > 1) exchange_gradients(slots, step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const OneBitGroup& group = groups[slot.group()];
      device_->grow(values_, slot.numel());
      double scale = 1;
      if (world_size_ > 1) {
        feedback_.buckets().average(i, slot.numel(), values_.data());
      } else {  // with one rank its gradient is the mean
        scale = step.grad_scale();
        kernels().widen(device_->grad(slot), slot.numel(), values_.data());
      }
      masks_.apply(slot, step, values_.data());
      kernels().blend_and_step(group.numbers(scale), values_.data(), device_->floats(slot, kExpAvgSq),
                               device_->floats(slot, kExpAvg), device_->param(slot), slot.numel());
    }
  }

  void exchange_gradients(const sdk::Slots& slots, const sdk::Step& step) {
    const auto scale = static_cast<float>(step.grad_scale());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      kernels().add_gradient(device_->grad(slots[i]), scale, feedback_.worker_error(i), slots[i].numel(),
                             feedback_.squares(i));
    }
    feedback_.exchange(step);
  }

  void update_locally(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    if (rate_sums_.empty()) {
      rate_sums_.assign(groups.size(), 0.0);
      for (const sdk::Slot slot : slots) {
        kernels().copy(device_->param(slot), slot.numel(), device_->floats(slot, kCommon));
        kernels().fill(device_->floats(slot, kWay), slot.numel(), 0.0f);
      }
    }
    for (std::size_t i = 0; i < groups.size(); ++i) rate_sums_[i] += groups[i].lr;
    for (const sdk::Slot slot : slots) {
      kernels().local_step(groups[slot.group()].numbers(step.grad_scale()), device_->grad(slot),
                           device_->floats(slot, kCommon), device_->floats(slot, kExpAvgSq),
                           device_->floats(slot, kExpAvg), device_->floats(slot, kWay), device_->param(slot),
                           slot.numel());
    }
  }

  /// Averages the ways since the last common point, which all ranks have kept to the bit: the next one is common too.
  /// Groups that had no rate since have gone no way.
  void join(const sdk::Slots& slots, const sdk::Step& step) {
    if (world_size_ > 1) exchange_ways(slots, step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const double rate_sum = rate_sums_[slot.group()];
      if (rate_sum == 0) continue;
      const auto eps = static_cast<float>(step.group(slot.group()).number("eps"));
      float* way = device_->floats(slot, kWay);
      const float* v = device_->floats(slot, kExpAvgSq);
      if (world_size_ > 1) {
        feedback_.buckets().average(i, slot.numel(), way);
      } else {
        device_->grow(values_, slot.numel());
        kernels().fill(values_.data(), slot.numel(), 0.0f);
        kernels().add_preconditioned(eps, way, v, values_.data(), slot.numel(), nullptr);
        kernels().copy(values_.data(), slot.numel(), way);
      }
      masks_.apply(slot, step, way);
      kernels().join_step(eps, static_cast<float>(rate_sum), v, way, device_->floats(slot, kCommon),
                          device_->floats(slot, kExpAvg), device_->param(slot), slot.numel());
    }
    std::fill(rate_sums_.begin(), rate_sums_.end(), 0.0);
  }

  void exchange_ways(const sdk::Slots& slots, const sdk::Step& step) {
    std::vector<std::size_t> active;
    for (std::size_t buffer = 0; buffer < feedback_.buckets().count(); ++buffer) {
      if (rate_sums_[feedback_.buckets().group_of(buffer)] != 0) active.push_back(buffer);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      if (rate_sums_[slot.group()] == 0) continue;
      const auto eps = static_cast<float>(step.group(slot.group()).number("eps"));
      kernels().add_preconditioned(eps, device_->floats(slot, kWay), device_->floats(slot, kExpAvgSq),
                                   feedback_.worker_error(i), slot.numel(), feedback_.squares(i));
    }
    feedback_.exchange(step, active);
  }

  std::unique_ptr<Device> device_;
  std::size_t world_size_;
  ZeroOneSchedule::Settings settings_;
  ZeroOneSchedule schedule_;
  ErrorFeedback feedback_;
  Masks masks_;
  std::vector<double> rate_sums_;  // since the last exchange, one a group; empty before the first local step
  sdk::Array<float> values_;       // the values of one parameter at a time
};

}  // namespace capstan::optimizers
