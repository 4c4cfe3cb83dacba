// What computes attention over the blocks that a layout sets, on the CPU.

#include <memory>

#include "capstan/sdk/attention_kernel.hpp"
#include "plugins/attention/block_sparse/plan.hpp"
#include "plugins/attention/block_sparse/tiles.hpp"

namespace {

class BlockSparse {
 public:
  using Plan = capstan::attention::Plan;

  BlockSparse(capstan::sdk::Host, const capstan::sdk::Params&) {}
  std::unique_ptr<Plan> prepare(const capstan::sdk::AttentionLayout& layout) const {
    return std::make_unique<Plan>(capstan::attention::make_plan(layout));
  }
  void forward(const Plan& plan, const capstan::sdk::AttentionCall& call, const capstan::sdk::Rows& out,
               float* log_sum_exp) const {
    capstan::attention::attend(plan, call, out, log_sum_exp);
  }
  void backward(const Plan& plan, const capstan::sdk::AttentionCall& call,
                const capstan::sdk::AttentionGradients& gradients) const {
    capstan::attention::attend_backward(plan, call, gradients);
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::attention_kernel<BlockSparse, "block_sparse">)
