#include "drawn_positions.hpp"
#include "random_ltd.hpp"

namespace capstan::random_ltd {
namespace {

/// Random-LTD whose positions are drawn.
class DrawnRandomLtd : public RandomLtd {
 public:
  DrawnRandomLtd(sdk::Host host, const sdk::Params& params)
      : RandomLtd(host, params, [seed = static_cast<std::uint64_t>(params.integer("seed"))](const TokenChoice& choice) {
          return draw_positions(seed, choice);
        }) {}
};

}  // namespace
}  // namespace capstan::random_ltd

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::random_ltd::DrawnRandomLtd, "random_ltd">)
