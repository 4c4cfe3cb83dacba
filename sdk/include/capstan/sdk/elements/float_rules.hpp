#pragma once

#include <cmath>

#include "capstan/sdk/elements/everywhere.hpp"

// The functions of elements.hpp for V = float. Build files that include this without contraction of multiply-adds.
#define CAPSTAN_RULE CAPSTAN_EVERYWHERE
#define CAPSTAN_RULES namespace capstan::elements {
#define CAPSTAN_RULES_END }

namespace capstan::elements {

CAPSTAN_RULE inline float mul_add(float a, float b, float c) { return std::fma(a, b, c); }
CAPSTAN_RULE inline float neg_mul_add(float a, float b, float c) { return std::fma(-a, b, c); }
CAPSTAN_RULE inline float sqrt(float a) { return std::sqrt(a); }
CAPSTAN_RULE inline float abs(float a) { return std::fabs(a); }
CAPSTAN_RULE inline float max(float a, float b) { return std::fmax(a, b); }
CAPSTAN_RULE inline float min(float a, float b) { return std::fmin(a, b); }
CAPSTAN_RULE inline float copy_sign(float magnitude, float sign) { return std::copysign(magnitude, sign); }
CAPSTAN_RULE inline float select(bool mask, float where_true, float where_false) {
  return mask ? where_true : where_false;
}

}  // namespace capstan::elements
