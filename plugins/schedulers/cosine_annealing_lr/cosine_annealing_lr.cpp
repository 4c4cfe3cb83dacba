#include <cmath>
#include <numbers>

#include "capstan/sdk/scheduler.hpp"

namespace capstan::schedulers {
namespace {

/// torch's CosineAnnealingLR: along half a cosine from the optimizer's rate to eta_min in T_max updates, and back.
class CosineAnnealingLR {
 public:
  CosineAnnealingLR(const sdk::Host&, const sdk::Params& params)
      : length_(params.number("T_max")), min_(params.number("eta_min")), first_(params.integer("last_epoch") + 1) {}

  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    const auto epoch = static_cast<double>(first_ + update_index);
    return min_ + (base_lr - min_) * (1.0 + std::cos(std::numbers::pi * epoch / length_)) / 2.0;
  }

 private:
  double length_, min_;
  std::int64_t first_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::CosineAnnealingLR, "CosineAnnealingLR">)
