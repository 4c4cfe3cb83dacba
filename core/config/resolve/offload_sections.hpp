#pragma once

#include "core/config/resolve/effective.hpp"

namespace capstan {

inline constexpr const char* kOffloadOptimizer = "zero_optimization.offload_optimizer";
inline constexpr const char* kOffloadParameters = "zero_optimization.offload_param";

/// True when the section's device is one to which something is moved.
bool offloads(const Effective& values, const char* section);

}  // namespace capstan
