#include "unit_pruning.hpp"

namespace capstan::compression {
namespace {

class RowPruning : public UnitPruning {
 public:
  RowPruning(sdk::Host, const sdk::Params& params)
      : UnitPruning({"row_pruning", "row_mask_scores", "rows", ModuleKind::kLinear, false}, params) {}
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::RowPruning, "row_pruning">)
