// A difficulty that rises, and every way to get it wrong.
#include "capstan/sdk/pacing.hpp"

#include <algorithm>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }

  std::int64_t difficulty(std::string_view, std::int64_t step) const {
    leak_in_call();
    if (breaks("range")) return 100 - step;
    if (breaks("pure")) return furthest_ = std::max(furthest_, step);
    return 8 + step / 10;
  }

 private:
  mutable std::int64_t furthest_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::pacing<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
