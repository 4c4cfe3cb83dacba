#include "core/parameters/slot_blocks.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/memory/tensor_handle.hpp"
#include "core/zero/partition.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kBlock = Partition::kBlock;

StateSpec state(StateSpec::Like like, StateSpec::Extent extent = StateSpec::Extent::kShard) {
  StateSpec spec;
  spec.like = like;
  spec.extent = extent;
  return spec;
}

/// A slot of `numel` elements from `offset` of its parameter on, whose tensors count 0, 1, 2 ... from different bases.
struct Tensors {
  Tensors(std::int64_t numel, std::int64_t first)
      : param(at::arange(numel)),
        grad(at::arange(1000, 1000 + numel)),
        moment(at::arange(2000, 2000 + numel)),
        count(at::zeros({1})),
        states{handle_of(moment), handle_of(count), nullptr} {
    slot.struct_size = sizeof slot;
    slot.group = 3;
    slot.param = handle_of(param);
    slot.grad = handle_of(grad);
    slot.state = states.data();
    slot.offset = static_cast<std::uint64_t>(first);
    slot.numel = static_cast<std::uint64_t>(numel);
    slot.compute = handle_of(param);
  }
  at::Tensor param, grad, moment, count;
  std::vector<capstan_tensor> states;
  capstan_slot slot{};
};

TEST(SlotBlocks, CutEverySlotWhereRanksMayCutIt) {
  const std::vector<StateSpec> states = {state(StateSpec::Like::kParameter),
                                         state(StateSpec::Like::kParameter, StateSpec::Extent::kModel),
                                         state(StateSpec::Like::kScalar), state(StateSpec::Like::kParameter)};
  for (const std::int64_t numel : {std::int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock + 7}) {
    const Tensors whole(numel, 5 * kBlock), other(3, 0);
    const SlotBlocks blocks({&whole.slot, &other.slot}, states);
    const auto count = static_cast<std::size_t>((numel + kBlock - 1) / kBlock);
    ASSERT_EQ(blocks.slots().size(), count + 1);
    for (std::size_t b = 0; b < count; ++b) {
      const capstan_slot& block = *blocks.slots()[b];
      const std::int64_t from = static_cast<std::int64_t>(b) * kBlock, size = std::min(kBlock, numel - from);
      EXPECT_EQ(block.offset, static_cast<std::uint64_t>(5 * kBlock + from));
      EXPECT_EQ(block.numel, static_cast<std::uint64_t>(size));
      EXPECT_EQ(block.group, 3u);
      EXPECT_TRUE(tensor_of(block.param).equal(whole.param.narrow(0, from, size)));
      EXPECT_TRUE(tensor_of(block.grad).equal(whole.grad.narrow(0, from, size)));
      EXPECT_TRUE(tensor_of(block.state[0]).equal(whole.moment.narrow(0, from, size)));
      EXPECT_EQ(block.state[1], handle_of(whole.count));  // one for the whole slot
      EXPECT_EQ(block.state[2], nullptr);                 // switched off
      EXPECT_EQ(block.compute, nullptr);
    }
    EXPECT_TRUE(tensor_of(blocks.slots()[count]->grad).equal(other.grad));
  }
}

TEST(SlotBlocks, HaveTheirOwnValuesOfAStateOfBlocks) {
  StateSpec scale = state(StateSpec::Like::kBlock);
  scale.block = 256;
  constexpr std::int64_t kNumel = 2 * kBlock + 257, kScales = kBlock / 256;
  Tensors whole(kNumel, 0);
  const at::Tensor scales = at::arange(2 * kScales + 2);
  whole.states = {handle_of(scales)};
  const SlotBlocks blocks({&whole.slot}, {scale});
  ASSERT_EQ(blocks.slots().size(), 3u);
  EXPECT_TRUE(tensor_of(blocks.slots()[0]->state[0]).equal(at::arange(kScales)));
  EXPECT_TRUE(tensor_of(blocks.slots()[1]->state[0]).equal(at::arange(kScales, 2 * kScales)));
  EXPECT_TRUE(tensor_of(blocks.slots()[2]->state[0]).equal(at::arange(2 * kScales, 2 * kScales + 2)));
}

TEST(SlotBlocks, AreThePartsThemselvesAndNoCopies) {
  Tensors whole(kBlock + 2, 0);
  const SlotBlocks blocks({&whole.slot}, {state(StateSpec::Like::kParameter), state(StateSpec::Like::kScalar),
                                          state(StateSpec::Like::kParameter)});
  tensor_of(blocks.slots()[1]->param).fill_(-1);
  EXPECT_EQ(whole.param.eq(-1).sum().item<std::int64_t>(), 2);
}

TEST(SlotBlocks, AreNoneOfASlotWithoutElements) {
  const Tensors nothing(0, 0);
  EXPECT_TRUE(SlotBlocks({&nothing.slot}, {}).slots().empty());
}

}  // namespace
}  // namespace capstan
