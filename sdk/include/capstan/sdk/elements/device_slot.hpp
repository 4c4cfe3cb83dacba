#pragma once

#include <initializer_list>
#include <string>

#include "capstan/sdk/device.hpp"
#include "capstan/sdk/elements/device_block.hpp"

namespace capstan::elements {

inline DeviceValues device_values(const sdk::Values& values) {
  return {values.data, values.dtype == sdk::Dtype::kBFloat16  ? ElementType::kBFloat16
                       : values.dtype == sdk::Dtype::kFloat16 ? ElementType::kFloat16
                                                              : ElementType::kFloat32};
}

/// A slot, with its states by their numbers in the manifest, in the rule's order.
inline DeviceBlock block_of(const sdk::DeviceSlot& slot, std::initializer_list<std::size_t> states) {
  DeviceBlock block{slot.param(), device_values(slot.grad()), device_values(slot.compute()), {}, slot.numel()};
  std::size_t next = 0;
  for (const std::size_t index : states) block.state[next++] = device_values(slot.state(index));
  return block;
}

/// Throws what kept kernels from being launched. `fault` is null where nothing did.
inline void check_launch(const char* fault) {
  if (fault) throw sdk::Error(std::string("launching the update on the device failed: ") + fault);
}

/// Call it where the updates of all slots were launched, because the launches write the compute copies. `slots` are
/// sdk::Slots, or several of them.
template <class Slots>
void mark_written(const Slots& slots) {
  for (const sdk::Slot raw : slots) {
    const sdk::DeviceSlot slot(raw);
    if (slot.compute().data) slot.mark_compute_written();
  }
}

}  // namespace capstan::elements
