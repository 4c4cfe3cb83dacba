#pragma once

#include "capstan/sdk/elements/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct LambNumbers {
  Moments moments;
  float eps_inside, eps_outside;  // epsilon inside and outside of the square root; one of them is 0
  float decay;
  float rate;  // lr, bias correction and trust ratio; not used in measuring
};

/// Sums: squares of the weights, squares of the direction that the update will take. States as lamb_kernel's.
void lamb_measure_kernel(const Block& block, const void* numbers);
/// States: exp_avg, exp_avg_sq.
void lamb_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
