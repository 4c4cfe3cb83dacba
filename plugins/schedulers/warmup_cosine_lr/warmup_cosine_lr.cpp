#include <algorithm>
#include <cmath>
#include <numbers>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/corrections.hpp"
#include "plugins/schedulers/common/updates.hpp"
#include "plugins/schedulers/common/warmup.hpp"

namespace capstan::schedulers {
namespace {

/// Raises the rate to the optimizer's own, then lowers it along half a cosine to cos_min_ratio of it.
class WarmupCosineLR {
 public:
  WarmupCosineLR(const sdk::Host&, const sdk::Params& params)
      : updates_(params),
        warmup_(params),
        total_(params.integer("total_num_steps")),
        warmup_min_(params.number("warmup_min_ratio")),
        cos_min_(params.number("cos_min_ratio")),
        // As recorded, the cosine's first point is one update in, so that the top is never reached.
        cosine_offset_(corrected(params, "cosine-start") ? 0 : 1) {}

  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    if (updates_.untouched(update_index)) return base_lr;
    const std::int64_t k = updates_.k(update_index);
    if (k < 0) return 0;  // whatever warmup_min_ratio is: recorded
    return base_lr * ratio(k);
  }

 private:
  double ratio(std::int64_t k) const {
    if (warmup_.rises(k)) return warmup_min_ + warmup_.progress(k) * (1.0 - warmup_min_);
    const auto done = static_cast<double>(k - warmup_.steps() + cosine_offset_);
    const auto length = static_cast<double>(std::max<std::int64_t>(1, total_ - warmup_.steps()));
    const double y = std::min(1.0, done / length);
    return cos_min_ + (1.0 - cos_min_) * ((1.0 + std::cos(std::numbers::pi * y)) / 2.0);
  }

  Updates updates_;
  Warmup warmup_;
  std::int64_t total_;
  double warmup_min_, cos_min_;
  std::int64_t cosine_offset_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::WarmupCosineLR, "WarmupCosineLR">)
