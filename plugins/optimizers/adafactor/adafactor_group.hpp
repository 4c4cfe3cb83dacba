#pragma once

#include <cstddef>

#include "capstan/sdk/optimizer.hpp"

namespace capstan::optimizers {

enum AdafactorState : std::size_t { kStep, kRowVar, kColVar, kVariance };

/// The numbers of a parameter group.
struct AdafactorGroup {
  double lr, beta2_decay, least_root, least_scale, d, weight_decay;
  bool maximize;

  static AdafactorGroup read(const sdk::Group& group) {
    double eps[2];
    group.read("eps", eps, 2);
    return {group.number("lr"),           group.number("beta2_decay"), eps[0], eps[1], group.number("d"),
            group.number("weight_decay"), group.boolean("maximize")};
  }
};

}  // namespace capstan::optimizers
