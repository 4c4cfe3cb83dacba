#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/adaptive_update.hpp"
#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/error_feedback.hpp"
#include "plugins/optimizers/onebit/settings.hpp"
#include "plugins/optimizers/onebit/units.hpp"
#include "plugins/optimizers/zero_one_adam/zero_one_schedule.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kWay, kCommon, kStep };

ZeroOneSchedule::Settings schedule_settings(const sdk::Params& params) {
  return {params.integer("var_freeze_step"), params.integer("var_update_scaler"), params.integer("local_step_scaler"),
          params.integer("local_step_clipper")};
}

/// 0/1 Adam (Lu et al. 2022). First the second moment adapts in growing intervals, and gradients in between travel at
/// one bit an element; then it stands still, every rank steps by itself, and in growing intervals the ranks average
/// the way that they have gone, at one bit an element.
class ZeroOneAdam {
 public:
  using Kind = ZeroOneSchedule::Kind;

  ZeroOneAdam(const sdk::Host& host, const sdk::Params& params)
      : world_size_(host.world_size()),
        settings_(schedule_settings(params)),
        schedule_(settings_),
        feedback_("ZeroOneAdam", host, Buckets::Each::kParameter) {
    check_settings("ZeroOneAdam", host, params);
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
    if (schedule_.kind() == Kind::kFull) return adaptive_update(slots, {kExpAvg, kExpAvgSq}, step, groups);
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
  using Groups = std::vector<OneBitGroup>;

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
      values_.resize(std::max(values_.size(), slot.numel()));
      double scale = 1;
      if (world_size_ > 1) {
        feedback_.buckets().average(i, slot.numel(), values_.data());
      } else {  // with one rank its gradient is the mean
        scale = step.grad_scale();
        const float* own = gradient(slot.grad(), 0, slot.numel(), values_.data());
        if (own != values_.data()) std::copy_n(own, slot.numel(), values_.data());
      }
      masks_.apply(slot, step, values_.data());
      const Moments moments = group.numbers(scale).moments;
      const StepRates rates = group.rates();
      float *m = slot.floats(kExpAvg), *p = slot.param();
      const float* v = slot.floats(kExpAvgSq);
      for_units(slot.numel(), [&](std::size_t begin, std::size_t end) {
        blend_gradient(moments, values_.data() + begin, m + begin, end - begin);
        frozen_step(rates, m + begin, v + begin, p + begin, end - begin);
      });
    }
  }

  void exchange_gradients(const sdk::Slots& slots, const sdk::Step& step) {
    const auto scale = static_cast<float>(step.grad_scale());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      float* error = feedback_.worker_error(i);
      feedback_.add_squares(
          i, sum_units(slots[i].numel(), [&, grad = slots[i].grad()](std::size_t begin, std::size_t end) {
            alignas(64) float buffer[kUnitElements];
            return add_and_measure(gradient(grad, begin, end, buffer), scale, error + begin, end - begin);
          }));
    }
    feedback_.exchange(step);
  }

  void update_locally(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    if (rate_sums_.empty()) {
      rate_sums_.assign(groups.size(), 0.0);
      for (const sdk::Slot slot : slots) {
        std::copy_n(slot.param(), slot.numel(), slot.floats(kCommon));
        std::fill_n(slot.floats(kWay), slot.numel(), 0.0f);
      }
    }
    for (std::size_t i = 0; i < groups.size(); ++i) rate_sums_[i] += groups[i].lr;
    for (const sdk::Slot slot : slots) {
      const AdaptiveNumbers numbers = groups[slot.group()].numbers(step.grad_scale());
      const float *common = slot.floats(kCommon), *v = slot.floats(kExpAvgSq);
      float *m = slot.floats(kExpAvg), *way = slot.floats(kWay), *p = slot.param();
      for_units(slot.numel(), [&, grad = slot.grad()](std::size_t begin, std::size_t end) {
        alignas(64) float buffer[kUnitElements];
        local_step(numbers, gradient(grad, begin, end, buffer), common + begin, v + begin, m + begin, way + begin,
                   p + begin, end - begin);
      });
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
      float *way = slot.floats(kWay), *m = slot.floats(kExpAvg), *common = slot.floats(kCommon), *p = slot.param();
      const float* v = slot.floats(kExpAvgSq);
      if (world_size_ > 1) {
        feedback_.buckets().average(i, slot.numel(), way);
      } else {
        values_.assign(slot.numel(), 0.0f);
        add_preconditioned(eps, way, v, values_.data(), slot.numel());
        std::copy_n(values_.data(), slot.numel(), way);
      }
      masks_.apply(slot, step, way);
      for_units(slot.numel(), [&](std::size_t begin, std::size_t end) {
        join_step(eps, static_cast<float>(rate_sum), v + begin, way + begin, common + begin, m + begin, p + begin,
                  end - begin);
      });
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
      const float *way = slot.floats(kWay), *v = slot.floats(kExpAvgSq);
      float* error = feedback_.worker_error(i);
      feedback_.add_squares(i, sum_units(slot.numel(), [&](std::size_t begin, std::size_t end) {
                              return add_preconditioned(eps, way + begin, v + begin, error + begin, end - begin);
                            }));
    }
    feedback_.exchange(step, active);
  }

  std::size_t world_size_;
  ZeroOneSchedule::Settings settings_;
  ZeroOneSchedule schedule_;
  ErrorFeedback feedback_;
  Masks masks_;
  std::vector<double> rate_sums_;  // since the last exchange, one a group; empty before the first local step
  std::vector<float> values_;      // of one parameter at a time
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::ZeroOneAdam, "ZeroOneAdam">)
