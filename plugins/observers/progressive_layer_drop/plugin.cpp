#include "progressive_layer_drop.hpp"

namespace capstan::layer_drop {
namespace {

class DrawnLayerDrop : public ProgressiveLayerDrop {
 public:
  DrawnLayerDrop(sdk::Host host, const sdk::Params& params)
      : ProgressiveLayerDrop(host, params, draws(static_cast<std::uint64_t>(params.integer("seed")))) {}
};

}  // namespace
}  // namespace capstan::layer_drop

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::layer_drop::DrawnLayerDrop, "progressive_layer_drop">)
