#pragma once

#include <initializer_list>

#include "capstan/sdk/cuda.hpp"
#include "plugins/optimizers/common/device_block.hpp"

namespace capstan::optimizers {

inline DeviceValues device_values(const sdk::Values& values) {
  return {values.data, values.dtype == sdk::Dtype::kBFloat16  ? ElementType::kBFloat16
                       : values.dtype == sdk::Dtype::kFloat16 ? ElementType::kFloat16
                                                              : ElementType::kFloat32};
}

/// A slot, with its states by their numbers in the manifest, in the rule's order.
inline DeviceBlock block_of(const sdk::CudaSlot& slot, std::initializer_list<std::size_t> states, void* stream) {
  DeviceBlock block{slot.param(), device_values(slot.grad()), device_values(slot.compute()), {}, slot.numel(), stream};
  std::size_t next = 0;
  for (const std::size_t index : states) block.state[next++] = device_values(slot.state(index));
  return block;
}

/// Marks the compute copy as written when `fault` is null, else throws it as the slot's failure.
inline void finish(const sdk::CudaSlot& slot, const DeviceBlock& block, const char* fault) {
  if (fault) slot.fail(fault);
  if (block.copy.data) slot.mark_compute_written();
}

}  // namespace capstan::optimizers
