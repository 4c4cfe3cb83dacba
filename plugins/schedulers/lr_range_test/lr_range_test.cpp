#include <cmath>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/per_group.hpp"
#include "plugins/schedulers/common/updates.hpp"

namespace capstan::schedulers {
namespace {

/// Raises the rate without end, to find where training breaks (Smith 2018).
class LRRangeTest {
 public:
  LRRangeTest(const sdk::Host&, const sdk::Params& params)
      : updates_(params),
        min_(params, "lr_range_test_min_lr"),
        step_size_(params.number("lr_range_test_step_size")),
        step_rate_(params.number("lr_range_test_step_rate")),
        staircase_(params.boolean("lr_range_test_staircase")) {}

  void start(const sdk::ScheduleStart& start) const { min_.check_length(start); }

  double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const {
    if (updates_.untouched(update_index)) return base_lr;
    const std::int64_t k = updates_.k(update_index);
    if (k < 0) return min_[group];
    const double x = static_cast<double>(k + 1) / step_size_;
    return min_[group] * (1.0 + step_rate_ * (staircase_ ? std::floor(x) : x));
  }

 private:
  Updates updates_;
  PerGroup min_;
  double step_size_, step_rate_;
  bool staircase_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::LRRangeTest, "LRRangeTest">)
