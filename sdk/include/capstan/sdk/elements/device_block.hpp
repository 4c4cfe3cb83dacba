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

/// A slot with its rule.
template <class Rule>
struct DeviceUpdate {
  DeviceBlock block;
  Rule rule;
};

constexpr std::size_t kSweepChunk = 16384;  // elements that a block of threads takes
constexpr std::size_t chunks_of(std::size_t elements) { return (elements + kSweepChunk - 1) / kSweepChunk; }

}  // namespace capstan::elements
