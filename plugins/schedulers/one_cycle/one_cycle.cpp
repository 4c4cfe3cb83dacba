#include <algorithm>
#include <cmath>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/corrections.hpp"
#include "plugins/schedulers/common/per_group.hpp"
#include "plugins/schedulers/common/text.hpp"
#include "plugins/schedulers/common/updates.hpp"

namespace capstan::schedulers {
namespace {

constexpr double kCycledBeta2 = 0.99;
constexpr double kGreatestMomentum = 0.999;

/// One cycle (Smith 2018): the rate rises from cycle_min_lr to cycle_max_lr and falls back, the momentum does the
/// opposite; afterwards both may decay.
class OneCycle {
 public:
  OneCycle(const sdk::Host& host, const sdk::Params& params)
      : host_(host),
        updates_(params),
        min_lr_(params, "cycle_min_lr"),
        max_lr_(params, "cycle_max_lr"),
        min_momentum_(params, "cycle_min_mom"),
        max_momentum_(params, "cycle_max_mom"),
        decay_lr_rate_(params.number("decay_lr_rate")),
        decay_momentum_rate_(params.number("decay_mom_rate")),
        decay_step_size_(params.number("decay_step_size")),
        first_(params.number("cycle_first_step_size")),
        second_(
            params.number(params.has("cycle_second_step_size") ? "cycle_second_step_size" : "cycle_first_step_size")),
        first_stairs_(params.number("cycle_first_stair_count")),
        second_stairs_(params.number(params.has("cycle_second_stair_count") ? "cycle_second_stair_count"
                                                                            : "cycle_first_stair_count")),
        total_(first_ + second_),
        first_share_(first_ / total_),
        cycles_momentum_(params.boolean("cycle_momentum")),
        keeps_beta2_(corrected(params, "onecycle-beta2")),
        starts_at_max_momentum_(corrected(params, "onecycle-momentum-start")) {}

  void start(const sdk::ScheduleStart& start) {
    for (const PerGroup* list : {&min_lr_, &max_lr_, &min_momentum_, &max_momentum_}) list->check_length(start);
    warn_of_falling_cycle(start);
    if (!cycles_momentum_) return;
    if (!start.optimizer_has_betas()) {
      host_.warning(
          "scheduler.params.cycle_momentum: the optimizer has no betas, so there is no momentum to cycle. Set it to "
          "false to silence this.");
      cycles_momentum_ = false;
    } else if (!keeps_beta2_ && start.betas().beta2 != kCycledBeta2) {
      host_.info("scheduler OneCycle: beta2 is 0.99 while momentum is cycled, not the configured " +
                 number_text(start.betas().beta2) +
                 ". To keep it, add \"onecycle-beta2\" to capstan.corrections, or set cycle_momentum to false.");
    }
  }

  double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const {
    if (updates_.untouched(update_index)) return base_lr;
    const std::int64_t k = updates_.k(update_index);
    const double min = min_lr_[group];
    if (k < 0) return min;
    if (in_cycle(k)) return min + (max_lr_[group] - min) * height(k);
    if (decay_step_size_ == 0 || decay_lr_rate_ == 0) return min;
    return min / (1.0 + decay_lr_rate_ * decays(k));
  }

  sdk::Betas momentum(std::int64_t update_index, std::uint32_t group, sdk::Betas configured) const {
    if (!cycles_momentum_ || updates_.untouched(update_index)) return configured;
    return {clamped(momentum_at(updates_.k(update_index), group)), keeps_beta2_ ? configured.beta2 : kCycledBeta2};
  }

 private:
  bool in_cycle(std::int64_t k) const { return static_cast<double>(k) < total_; }
  double decays(std::int64_t k) const { return (static_cast<double>(k) - total_ + 1.0) / decay_step_size_; }

  /// 0 at both ends of the cycle, 1 at its peak.
  double height(std::int64_t k) const {
    const auto b = static_cast<double>(k + 1);
    const double cycle = std::floor(1.0 + b / total_);
    const double x = 1.0 + b / total_ - cycle;
    const bool rising = x <= first_share_;
    const double stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs > 0) return stair(b, stairs);
    return rising ? x / first_share_ : (x - 1.0) / (first_share_ - 1.0);
  }
  double stair(double b, double stairs) const {
    const double i = std::fmod(b, total_);
    const double climbed = i <= first_ ? i * stairs / first_ : (total_ - i) * stairs / second_;
    return std::floor(climbed) / stairs;
  }

  double momentum_at(std::int64_t k, std::uint32_t group) const {
    const double min = min_momentum_[group], max = max_momentum_[group];
    // As recorded, update 0 alone runs at the minimum, although the rate is lowest there.
    if (k < 0) return starts_at_max_momentum_ ? max : min;
    if (in_cycle(k)) return max - (max - min) * height(k);
    if (decay_step_size_ == 0 || decay_momentum_rate_ == 0) return max;
    return max * (1.0 + decay_momentum_rate_ * decays(k));
  }

  /// decay_mom_rate makes momentum grow without bound, and training with more than 1 diverges.
  double clamped(double momentum) const {
    if (momentum <= kGreatestMomentum) return momentum;
    if (!warned_of_clamp_) {
      host_.warning("scheduler.params.decay_mom_rate: momentum has grown to " + number_text(momentum) +
                    "; it is held at 0.999 from here on.");
      warned_of_clamp_ = true;
    }
    return kGreatestMomentum;
  }

  void warn_of_falling_cycle(const sdk::ScheduleStart& start) const {
    // Two plain numbers are compared when the configuration is read.
    if (!min_lr_.is_list() && !max_lr_.is_list()) return;
    for (std::uint32_t group = 0; group < start.group_count(); ++group) {
      if (min_lr_[group] <= max_lr_[group]) continue;
      host_.warning("scheduler.params.cycle_min_lr: " + number_text(min_lr_[group]) +
                    " exceeds cycle_max_lr, which is " + number_text(max_lr_[group]) +
                    ", so the rate falls where the cycle should rise.");
      return;
    }
  }

  sdk::Host host_;
  Updates updates_;
  PerGroup min_lr_, max_lr_, min_momentum_, max_momentum_;
  double decay_lr_rate_, decay_momentum_rate_, decay_step_size_;
  double first_, second_, first_stairs_, second_stairs_, total_, first_share_;
  bool cycles_momentum_, keeps_beta2_, starts_at_max_momentum_;
  mutable bool warned_of_clamp_ = false;  // changes nothing but what is logged
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::OneCycle, "OneCycle">)
