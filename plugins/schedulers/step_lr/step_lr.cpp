#include <cmath>

#include "capstan/sdk/scheduler.hpp"

namespace capstan::schedulers {
namespace {

/// torch's StepLR: multiplies the rate by gamma every step_size updates.
class StepLR {
 public:
  StepLR(const sdk::Host&, const sdk::Params& params)
      : step_size_(params.integer("step_size")),
        gamma_(params.number("gamma")),
        first_(params.integer("last_epoch") + 1) {}

  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    return base_lr * std::pow(gamma_, static_cast<double>((first_ + update_index) / step_size_));
  }

 private:
  std::int64_t step_size_;
  double gamma_;
  std::int64_t first_;
};

}  // namespace
}  // namespace capstan::schedulers

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<capstan::schedulers::StepLR, "StepLR">)
