#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/device.hpp"
#include "plugins/optimizers/onebit/error_feedback.hpp"
#include "plugins/optimizers/onebit/settings.hpp"

namespace capstan::optimizers {

/// 1-bit Adam (Tang et al. 2021): Adam without bias correction for freeze_step updates; then the second moment stands
/// still, and ranks average their momenta, compressed to one bit, instead of their gradients.
class OneBitAdam {
 public:
  OneBitAdam(std::unique_ptr<Device> device, const sdk::Host& host, const sdk::Params& params)
      : device_(std::move(device)),
        world_size_(host.world_size()),
        freeze_step_(params.integer("freeze_step")),
        feedback_("OneBitAdam", *device_, host, params, Buckets::Each::kParameter),
        momenta_(*device_, kExpAvg),
        masks_(*device_) {
    check_settings("OneBitAdam", *device_, host, params);
  }

  sdk::GradientMode gradient_mode(std::int64_t update_index) const {
    return compresses(update_index) && world_size_ > 1 ? sdk::GradientMode::kLocal : sdk::GradientMode::kMean;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    require_same(step, "freeze_step", static_cast<double>(freeze_step_));
    const auto groups = step.each_group([](const sdk::Group& group) { return OneBitGroup(group); });
    for (const sdk::Slot slot : slots) ++slot.counter(kStep);
    if (!compresses(step.update_index())) {
      device_->adaptive_update(slots, {kExpAvg, kExpAvgSq}, numbers_of(groups, step.grad_scale()));
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
  enum State : std::size_t { kExpAvg, kExpAvgSq, kStep };
  using Groups = std::vector<OneBitGroup>;

  Kernels& kernels() { return device_->kernels(); }

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
      float* m = device_->floats(slot, kExpAvg);
      kernels().blend(moments, device_->grad(slot), m, slot.numel());
      masks_.apply(slot, step, m);
      move(slot, groups[slot.group()].rates());
    }
    device_->adaptive_update(sdk::Slots(adaptive.data(), adaptive.size(), "OneBitAdam"), {kExpAvg, kExpAvgSq},
                             numbers_of(groups, step.grad_scale()));
  }

  void update_compressed(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    feedback_.begin(slots, step, [&](const sdk::Slot& slot) { return is_frozen(slot, step); });
    momenta_.gather(slots, step.collectives());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!feedback_.buckets().has(i)) continue;
      add_momentum(slots, i, groups[slots[i].group()].numbers(step.grad_scale()).moments);
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

  void add_momentum(const sdk::Slots& slots, std::size_t index, const Moments& moments) {
    const sdk::Slot slot = slots[index];
    kernels().add_blended(moments, momenta_.whole(slots, index), device_->grad(slot), 1.0f,
                          feedback_.worker_error(index), static_cast<std::size_t>(slot.full_numel()),
                          feedback_.squares(index));
  }

  /// Groups that are never compressed, though gradients are this rank's own by now.
  void update_not_frozen(const sdk::Slots& slots, const sdk::Step& step, const Groups& groups) {
    std::vector<std::size_t> members;
    std::size_t total = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (feedback_.buckets().has(i)) continue;
      members.push_back(i);
      total += static_cast<std::size_t>(slots[i].full_numel());
    }
    if (members.empty()) return;
    const sdk::Array<float> averages = device_->array<float>(total);
    std::size_t at = 0;
    for (const std::size_t index : members) {
      const auto count = static_cast<std::size_t>(slots[index].full_numel());
      kernels().widen(device_->grad(slots[index]), count, averages.data() + at);
      at += count;
    }
    step.collectives().on(device_->place()).all_reduce_sum(averages.span());
    kernels().divide(averages.data(), static_cast<float>(world_size_), total, averages.data());

    std::deque<sdk::BorrowedTensor> gradients;
    std::deque<capstan_slot> copies;
    std::vector<const capstan_slot*> pointers;
    at = 0;
    for (const std::size_t index : members) {
      const sdk::Slot slot = slots[index];
      gradients.emplace_back(std::span<float>(averages.data() + at + slot.offset(), slot.numel()), device_->place());
      at += static_cast<std::size_t>(slot.full_numel());
      copies.push_back(*slot.raw());
      copies.back().grad = gradients.back().get();
      pointers.push_back(&copies.back());
    }
    device_->adaptive_update(sdk::Slots(pointers.data(), pointers.size(), "OneBitAdam"), {kExpAvg, kExpAvgSq},
                             numbers_of(groups, step.grad_scale()));
  }

  void move(const sdk::Slot& slot, const StepRates& rates) {
    kernels().frozen_step(rates, device_->floats(slot, kExpAvg), device_->floats(slot, kExpAvgSq), device_->param(slot),
                          slot.numel());
  }

  std::unique_ptr<Device> device_;
  std::size_t world_size_;
  std::int64_t freeze_step_;
  ErrorFeedback feedback_;
  WholeMomenta momenta_;
  Masks masks_;
};

}  // namespace capstan::optimizers
