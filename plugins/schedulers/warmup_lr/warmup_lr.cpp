#include <optional>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/per_group.hpp"
#include "plugins/schedulers/common/updates.hpp"
#include "plugins/schedulers/common/warmup.hpp"

namespace capstan::schedulers {
namespace {

/// Raises the rate from warmup_min_lr to warmup_max_lr, then holds it.
class WarmupLR {
 public:
  WarmupLR(const sdk::Host& host, const sdk::Params& params)
      : host_(host), updates_(params), warmup_(params), min_(params, "warmup_min_lr") {
    if (params.has("warmup_max_lr")) max_.emplace(params, "warmup_max_lr");
  }

  void start(const sdk::ScheduleStart& start) const {
    min_.check_length(start);
    if (max_) max_->check_length(start);
    // Two plain numbers are compared when the configuration is read.
    if (max_ && !min_.is_list() && !max_->is_list()) return;
    for (std::uint32_t group = 0; group < start.group_count(); ++group) {
      const double max = max_of(group, start.base_lrs()[group]);
      if (min_[group] <= max) continue;
      host_.warning(min_exceeds_max(min_[group], max));
      return;
    }
  }

  double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const {
    if (updates_.untouched(update_index)) return base_lr;
    const std::int64_t k = updates_.k(update_index);
    const double min = min_[group];
    if (k < 0) return min;
    return min + (max_of(group, base_lr) - min) * (warmup_.rises(k) ? warmup_.progress(k) : 1.0);
  }

 private:
  /// The optimizer's own rate is the top unless there is another.
  double max_of(std::uint32_t group, double base_lr) const { return max_ ? (*max_)[group] : base_lr; }

  sdk::Host host_;
  Updates updates_;
  Warmup warmup_;
  PerGroup min_;
  std::optional<PerGroup> max_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::WarmupLR, "WarmupLR">)
