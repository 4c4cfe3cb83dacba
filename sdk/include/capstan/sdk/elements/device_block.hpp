#pragma once

#include <cstddef>

#include "capstan/sdk/elements/block.hpp"

namespace capstan::elements {

enum class ElementType { kFloat32, kBFloat16, kFloat16 };

/// Values in the memory of the device that computes.
struct DeviceValues {
  void* data = nullptr;
  ElementType type = ElementType::kFloat32;
};

/// All elements of one slot on a GPU.
struct DeviceBlock {
  float* param;
  DeviceValues grad;  // as the slot has it: a rule multiplies by the step's scale
  DeviceValues copy;  // gets the new values, rounded; no data: no copy
  DeviceValues state[kMaxStates];
  std::size_t count;
};

/// A slot with the numbers of its rule.
template <class Numbers>
struct DeviceUpdate {
  DeviceBlock block;
  Numbers numbers;
};

}  // namespace capstan::elements
