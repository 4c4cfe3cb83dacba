// A rate that falls, and every way to get it wrong.
#include "capstan/sdk/scheduler.hpp"

#include <algorithm>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }

  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    const double index = static_cast<double>(update_index);
    leak_in_call();
    if (breaks("finite")) return base_lr * (1 - index / 1000);
    if (breaks("below_0")) return base_lr * (2 - index);
    if (breaks("pure")) return base_lr / static_cast<double>(++asked_);
    if (breaks("any_order")) return base_lr / static_cast<double>(1 + (furthest_ = std::max(furthest_, update_index)));
    if (breaks("resume")) {
      if (first_ < 0) first_ = update_index;
      return base_lr / static_cast<double>(1 + update_index - first_);
    }
    return base_lr / (1 + index);
  }
  sdk::Betas momentum(std::int64_t, std::uint32_t, sdk::Betas configured) const {
    return breaks("betas") ? sdk::Betas{configured.beta1, 1.0} : configured;
  }

 private:
  mutable std::int64_t asked_ = 0, furthest_ = 0, first_ = -1;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::scheduler<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
