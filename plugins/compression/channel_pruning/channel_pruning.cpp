#include "unit_pruning.hpp"

namespace capstan::compression {
namespace {

class ChannelPruning : public UnitPruning {
 public:
  ChannelPruning(sdk::Host, const sdk::Params& params)
      : UnitPruning({"channel_pruning", "channel_mask_scores", "channels", ModuleKind::kConv2d, false}, params) {}
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::ChannelPruning, "channel_pruning">)
