#include "core/parameters/slot_blocks.hpp"

#include <algorithm>

#include "core/memory/tensor_handle.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

static_assert(Partition::kBlock % StateSpec::kLargestBlock == 0, "a block of a state would be in two parts");

SlotBlocks::SlotBlocks(const std::vector<const capstan_slot*>& slots, const std::vector<StateSpec>& states) {
  std::vector<const StateSpec*> of_entries;
  for (const StateSpec& spec : states) {
    if (spec.extent != StateSpec::Extent::kModel) of_entries.push_back(&spec);
  }
  for (const capstan_slot* slot : slots) cut(*slot, of_entries);
  for (const capstan_slot& block : blocks_) pointers_.push_back(&block);
}

capstan_tensor SlotBlocks::part(capstan_tensor whole, std::int64_t from, std::int64_t count) {
  return handle_of(tensors_.emplace_back(tensor_of(whole).view({-1}).narrow(0, from, count)));
}

void SlotBlocks::cut(const capstan_slot& slot, const std::vector<const StateSpec*>& states) {
  const auto numel = static_cast<std::int64_t>(slot.numel);
  for (std::int64_t from = 0; from < numel; from += Partition::kBlock) {
    const std::int64_t count = std::min(Partition::kBlock, numel - from);
    auto& list = state_lists_.emplace_back();
    for (std::size_t i = 0; i < states.size(); ++i) {
      const StateSpec& spec = *states[i];
      const bool cuts = slot.state[i] != nullptr && spec.like != StateSpec::Like::kScalar && !spec.is_factor();
      const auto values = [&](std::int64_t elements) { return spec.values_for(elements, {}); };
      list.push_back(cuts ? part(slot.state[i], values(from), values(count)) : slot.state[i]);
    }
    capstan_slot& block = blocks_.emplace_back(slot);
    block.param = part(slot.param, from, count);
    block.grad = part(slot.grad, from, count);
    block.state = list.data();
    block.offset = slot.offset + static_cast<std::uint64_t>(from);
    block.numel = static_cast<std::uint64_t>(count);
    block.compute = nullptr;
    block.compute_written = nullptr;
    block.grad_rows = nullptr;  // a block need not begin at a row
    block.grad_row_count = 0;
  }
}

}  // namespace capstan
