#pragma once

#include <cstddef>
#include <cstdint>

#include "capstan/sdk/tensor.hpp"

namespace capstan::elements {

/// Values of a float dtype as fp32, exactly.
void widen(const void* from, sdk::Dtype dtype, float* to, std::size_t count);
/// fp32 values rounded to nearest even. NaN stays NaN; what is too large becomes infinite.
void narrow(const float* from, void* to, sdk::Dtype dtype, std::size_t count);

std::size_t size_of(sdk::Dtype dtype);

}  // namespace capstan::elements
