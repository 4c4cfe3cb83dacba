#pragma once

#include "capstan/sdk/optimizer.hpp"

namespace capstan::optimizers {

/// The numbers that Adam and its relatives share, of a group, as configured.
struct MomentGroup {
  double lr, beta1, beta2, eps, weight_decay;

  static MomentGroup of(const sdk::Group& group) { return of(group, group.number("weight_decay")); }
  static MomentGroup of(const sdk::Group& group, double weight_decay) {
    double betas[2];
    group.read("betas", betas, 2);
    return {group.number("lr"), betas[0], betas[1], group.number("eps"), weight_decay};
  }
};

}  // namespace capstan::optimizers
