#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "capstan/plugin.h"
#include "core/registry/manifest.hpp"

namespace capstan {

/// Slots cut into the fixed blocks in which ranks share parameters out, each block a slot of its own: what an optimizer
/// measures is added up block by block, so that the sum does not depend on who owns what.
class SlotBlocks {
 public:
  /// `slots` must outlive this; `states` are the optimizer's, in manifest order.
  SlotBlocks(const std::vector<const capstan_slot*>& slots, const std::vector<StateSpec>& states);
  const std::vector<const capstan_slot*>& slots() const { return pointers_; }

 private:
  void cut(const capstan_slot& slot, const std::vector<const StateSpec*>& states);
  capstan_tensor part(capstan_tensor whole, std::int64_t from, std::int64_t count);

  std::deque<at::Tensor> tensors_;
  std::deque<std::vector<capstan_tensor>> state_lists_;
  std::deque<capstan_slot> blocks_;
  std::vector<const capstan_slot*> pointers_;
};

}  // namespace capstan
