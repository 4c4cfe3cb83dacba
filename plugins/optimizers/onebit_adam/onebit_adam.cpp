#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/adaptive_update.hpp"
#include "plugins/optimizers/onebit/error_feedback.hpp"
#include "plugins/optimizers/onebit/settings.hpp"
#include "plugins/optimizers/onebit/units.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep };

/// 1-bit Adam (Tang et al. 2021): Adam without bias correction for freeze_step updates; then the second moment stands
/// still, and ranks average their momenta, compressed to one bit, instead of their gradients.
class OneBitAdam {
 public:
  OneBitAdam(const sdk::Host& host, const sdk::Params& params)
      : world_size_(host.world_size()),
        freeze_step_(params.integer("freeze_step")),
        feedback_("OneBitAdam", host, Buckets::Each::kParameter),
        momenta_(kExpAvg) {
    check_settings("OneBitAdam", host, params);
  }

  sdk::GradientMode gradient_mode(std::int64_t update_index) const {
    return compresses(update_index) && world_size_ > 1 ? sdk::GradientMode::kLocal : sdk::GradientMode::kMean;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    require_same(step, "freeze_step", static_cast<double>(freeze_step_));
    const auto groups = step.each_group([](const sdk::Group& group) { return OneBitGroup(group); });
    for (const sdk::Slot slot : slots) ++slot.counter(kStep);
    if (!compresses(step.update_index())) {
      adaptive_update(slots, {kExpAvg, kExpAvgSq}, step, groups);
    } else if (world_size_ == 1) {
      update_alone(slots, step, groups);
    } else {
      update_compressed(slots, step, groups);
    }
  }

  void save(const sdk::Sink& sink) const { sink.write("{\"errors\": " + feedback_.saved() + "}"); }
  void load(const sdk::Document& saved) {
    feedback_.load(saved);
    momenta_.forget();
  }

 private:
  using Groups = std::vector<OneBitGroup>;

  bool compresses(std::int64_t update_index) const { return update_index >= freeze_step_; }
  static bool is_frozen(const sdk::Slot& slot, const sdk::Step& step) {
    return !step.group(slot.group()).boolean("non_freeze");
  }

  /// With one rank there is nothing to exchange: only the second moment stands still.
  void update_alone(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    std::vector<const capstan_slot*> adaptive;
    for (const sdk::Slot slot : slots) {
      if (!is_frozen(slot, step)) {
        adaptive.push_back(slot.raw());
        continue;
      }
      const Moments moments = groups[slot.group()].numbers(step.grad_scale()).moments;
      float* m = slot.floats(kExpAvg);
      for_units(slot.numel(), [&, grad = slot.grad()](std::size_t begin, std::size_t end) {
        alignas(64) float buffer[kUnitElements];
        blend_gradient(moments, gradient(grad, begin, end, buffer), m + begin, end - begin);
      });
      masks_.apply(slot, step, m);
      move(slot, groups[slot.group()].rates());
    }
    adaptive_update(sdk::Slots(adaptive.data(), adaptive.size(), "OneBitAdam"), {kExpAvg, kExpAvgSq}, step, groups);
  }

  void update_compressed(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    feedback_.begin(slots, step, [&](const sdk::Slot& slot) { return is_frozen(slot, step); });
    momenta_.gather(slots, step.collectives());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (feedback_.buckets().has(i)) add_momentum(slots, i, groups[slots[i].group()].numbers(step.grad_scale()));
    }
    feedback_.exchange(step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!feedback_.buckets().has(i)) continue;
      const sdk::Slot slot = slots[i];
      float* m = momenta_.whole(slots, i);
      feedback_.buckets().average(i, static_cast<std::size_t>(slot.full_numel()), m);
      masks_.apply(slot, step, m);
      momenta_.keep(slots, i);
      move(slot, groups[slot.group()].rates());
    }
    update_not_frozen(slots, step, groups);
  }

  void add_momentum(const sdk::Slots& slots, std::size_t index, const AdaptiveNumbers& numbers) {
    const sdk::Slot slot = slots[index];
    const sdk::Values grad = slot.grad();
    const float* m = momenta_.whole(slots, index);
    float* error = feedback_.worker_error(index);
    feedback_.add_squares(
        index, sum_units(static_cast<std::size_t>(slot.full_numel()), [&](std::size_t begin, std::size_t end) {
          alignas(64) float buffer[kUnitElements];
          return add_blended(numbers.moments, m + begin, gradient(grad, begin, end, buffer), 1.0f, error + begin,
                             end - begin);
        }));
  }

  /// Groups that are never compressed, though gradients are this rank's own by now.
  void update_not_frozen(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    std::vector<float> averages;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (feedback_.buckets().has(i)) continue;
      members.push_back(i);
      const auto count = static_cast<std::size_t>(slots[i].full_numel());
      std::vector<float> buffer(count);
      const float* values = gradient(slots[i].grad(), 0, count, buffer.data());
      averages.insert(averages.end(), values, values + count);
    }
    if (members.empty()) return;
    step.collectives().all_reduce_sum(std::span<float>(averages));
    for (float& value : averages) value /= static_cast<float>(world_size_);

    std::deque<sdk::BorrowedTensor> gradients;
    std::deque<capstan_slot> copies;
    std::vector<const capstan_slot*> pointers;
    std::size_t at = 0;
    for (const std::size_t index : members) {
      const sdk::Slot slot = slots[index];
      gradients.emplace_back(std::span<float>(averages.data() + at + slot.offset(), slot.numel()));
      at += static_cast<std::size_t>(slot.full_numel());
      copies.push_back(*slot.raw());
      copies.back().grad = gradients.back().get();
      pointers.push_back(&copies.back());
    }
    adaptive_update(sdk::Slots(pointers.data(), pointers.size(), "OneBitAdam"), {kExpAvg, kExpAvgSq}, step, groups);
  }

  static void move(const sdk::Slot& slot, const StepRates& rates) {
    const float* m = slot.floats(kExpAvg);
    const float* v = slot.floats(kExpAvgSq);
    float* p = slot.param();
    for_units(slot.numel(), [&](std::size_t begin, std::size_t end) {
      frozen_step(rates, m + begin, v + begin, p + begin, end - begin);
    });
  }

  std::size_t world_size_;
  std::int64_t freeze_step_;
  ErrorFeedback feedback_;
  WholeMomenta momenta_;
  Masks masks_;
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::OneBitAdam, "OneBitAdam">)
