#include "unit_pruning.hpp"

namespace capstan::compression {
namespace {

class HeadPruning : public UnitPruning {
 public:
  HeadPruning(sdk::Host, const sdk::Params& params)
      : UnitPruning({"head_pruning", "head_pruning_scores", "heads", ModuleKind::kLinear, true}, params) {}
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::HeadPruning, "head_pruning">)
