#include <algorithm>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/per_group.hpp"
#include "plugins/schedulers/common/updates.hpp"
#include "plugins/schedulers/common/warmup.hpp"

namespace capstan::schedulers {
namespace {

/// Raises the rate from warmup_min_lr to warmup_max_lr, then lowers it linearly to warmup_min_lr at total_num_steps.
class WarmupDecayLR {
 public:
  WarmupDecayLR(const sdk::Host& host, const sdk::Params& params)
      : host_(host),
        updates_(params),
        warmup_(params),
        min_(params, "warmup_min_lr"),
        max_(params, "warmup_max_lr"),
        total_(params.integer("total_num_steps")) {}

  void start(const sdk::ScheduleStart& start) const {
    min_.check_length(start);
    max_.check_length(start);
    // Two plain numbers are compared when the configuration is read.
    if (!min_.is_list() && !max_.is_list()) return;
    for (std::uint32_t group = 0; group < start.group_count(); ++group) {
      if (min_[group] <= max_[group]) continue;
      host_.warning(min_exceeds_max(min_[group], max_[group]));
      return;
    }
  }

  double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const {
    if (updates_.untouched(update_index)) return base_lr;
    const std::int64_t k = updates_.k(update_index);
    const double min = min_[group];
    if (k < 0) return min;
    return min + (max_[group] - min) * (warmup_.rises(k) ? warmup_.progress(k) : decay(k));
  }

 private:
  double decay(std::int64_t k) const {
    const auto total = static_cast<double>(total_);
    const double left = total - static_cast<double>(k);
    return std::max(0.0, left / std::max(1.0, total - static_cast<double>(warmup_.steps())));
  }

  sdk::Host host_;
  Updates updates_;
  Warmup warmup_;
  PerGroup min_, max_;
  std::int64_t total_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::WarmupDecayLR, "WarmupDecayLR">)
