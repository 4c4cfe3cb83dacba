#pragma once

#include "plugins/optimizers/common/moments.hpp"

namespace capstan::elements {

/// What the steps need of a group: no bias correction, decay outside of the moments.
struct StepRates {
  float lr, eps, decay;
};

struct AdaptiveNumbers {
  Moments moments;
  StepRates rates;
};

}  // namespace capstan::elements
