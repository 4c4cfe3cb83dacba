#pragma once

#include <cstdint>

#include "capstan/sdk/attention_kernel.hpp"
#include "plugins/attention/block_sparse/plan.hpp"

namespace capstan::attention {

/// Attention over the blocks of a plan, flash style (Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4): one tile
/// of scores at a time, products by LibTorch's BLAS in float32, sums in an order that the number of threads does not
/// change. Run on LibTorch's threads. Throws std::bad_alloc.
void attend(const Plan& plan, const sdk::AttentionCall& call, const sdk::Rows& out, float* log_sum_exp);
void attend_backward(const Plan& plan, const sdk::AttentionCall& call, const sdk::AttentionGradients& gradients);

}  // namespace capstan::attention
