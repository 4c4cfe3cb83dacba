#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/memory/tensor_handle.hpp"
#include "core/parameters/parameter_store.hpp"
#include "tests/core/memory/fake_store.hpp"

namespace capstan {
namespace {

using testing::Each;

StateSpec state(const char* name, double init) {
  StateSpec spec;
  spec.name = name;
  spec.init = init;
  return spec;
}

std::vector<float> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

constexpr std::int64_t kLarge = 100'000, kSmall = 4;

/// A store of two parameters, the values 3 and 4, whose states `fake` keeps in tiles of 32,768 elements.
struct Offloaded {
  Offloaded(FakeStore& fake, std::vector<StateSpec> states, bool may_cut = true)
      : store(parameters, groups, accelerator, [&] {
          ParameterStore::Options options;
          options.sub_group_size = 1;
          options.states = std::move(states);
          options.state_dtype = [](const StateSpec& spec) {
            return spec.dtype == "uint8" ? at::kByte : spec.dtype == "int64" ? at::kLong : at::kFloat;
          };
          options.offload.states = fake.device();
          options.offload.may_cut = may_cut;
          return options;
        }()) {}

  const std::vector<NamedTensor> parameters = {{"large", at::zeros({kLarge}).fill_(3).requires_grad_(true)},
                                               {"small", at::zeros({kSmall}).fill_(4).requires_grad_(true)}};
  const ParameterGroups groups{parameters, {}, {}};
  const CpuAccelerator accelerator;
  ParameterStore store;
};

TEST(ParameterStoreTiles, CutAnEntryIntoPiecesThatCoverIt) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1)});
  ParameterStore& store = offloaded.store;
  ASSERT_EQ(store.sub_groups().size(), 4u) << "three of 32,768 elements, and what is left with the other parameter";
  std::int64_t next = 0;
  for (const SubGroup& sub_group : store.sub_groups()) {
    for (const Piece& piece : store.pieces(sub_group)) {
      if (piece.entry == 1) continue;
      EXPECT_EQ(piece.offset, next);
      EXPECT_EQ(piece.offset % 32768, 0);
      next += piece.numel;
    }
  }
  EXPECT_EQ(next, kLarge);
}

TEST(ParameterStoreTiles, KeepEntriesWholeForOptimizersThatNeedThem) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1)}, /*may_cut=*/false);
  ASSERT_EQ(offloaded.store.pieces().size(), 2u);
  EXPECT_EQ(offloaded.store.pieces()[0].numel, kLarge);
}

TEST(ParameterStoreTiles, GiveSlotsOfPiecesTheirGradients) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1)});
  ParameterStore& store = offloaded.store;
  at::Tensor large = offloaded.parameters[0].tensor;
  large.mutable_grad() = at::arange(kLarge, at::kFloat);
  store.collect_gradients();
  std::uint64_t next = 0;
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (const capstan_slot* slot : store.slots(sub_group)) {
      EXPECT_EQ(slot->offset, next);
      EXPECT_EQ(slot->full_numel, static_cast<std::uint64_t>(kLarge));
      const at::Tensor& gradient = tensor_of(slot->grad);
      ASSERT_EQ(gradient.numel(), static_cast<std::int64_t>(slot->numel));
      EXPECT_EQ(gradient[0].item<float>(), static_cast<float>(next));
      next += slot->numel;
    }
    store.release(sub_group, true);
  }
  EXPECT_EQ(next, static_cast<std::uint64_t>(kLarge)) << "the other parameter has no gradient";
}

TEST(ParameterStoreTiles, KeepInitialValues) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1), state("second", 2)});
  ParameterStore& store = offloaded.store;
  for (int round = 0; round < 2; ++round) {
    for (const SubGroup& sub_group : store.sub_groups()) {
      store.acquire(sub_group);
      for (Piece& piece : store.pieces(sub_group)) {
        EXPECT_THAT(values(piece.state[0]), Each(1 + round));
        EXPECT_THAT(values(piece.state[1]), Each(2));
        piece.state[0].fill_(2);
      }
      store.release(sub_group, true);
    }
  }
}

TEST(ParameterStoreTiles, ForgetWhatWasNotReleasedAsChanged) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1)});
  ParameterStore& store = offloaded.store;
  for (int round = 0; round < 2; ++round) {
    for (const SubGroup& sub_group : store.sub_groups()) {
      store.acquire(sub_group);
      EXPECT_THAT(values(store.pieces(sub_group)[0].state[0]), Each(1));
      store.release(sub_group, false);
    }
  }
}

TEST(ParameterStoreTiles, KeepBytesAndBlocksAndWhatBeginsAsTheParameters) {
  StateSpec code = state("code", 200), scale = state("scale", 7), start = state("start", 0);
  code.dtype = "uint8";
  scale.like = StateSpec::Like::kBlock;
  scale.block = 32;
  scale.when_min_numel = 5;
  start.init_param = true;
  StateSpec count = state("count", 5);
  count.like = StateSpec::Like::kScalar;
  count.dtype = "int64";
  FakeStore fake;
  Offloaded offloaded(fake, {code, scale, start, count});
  ParameterStore& store = offloaded.store;
  store.start_states();
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (const Piece& piece : store.pieces(sub_group)) {
      EXPECT_EQ(piece.state[0].scalar_type(), at::kByte);
      EXPECT_EQ(piece.state[0].eq(200).sum().item<std::int64_t>(), piece.numel);
      ASSERT_EQ(piece.state[1].defined(), piece.entry == 0);
      if (piece.entry == 0) {
        EXPECT_EQ(piece.state[1].eq(7).sum().item<std::int64_t>(), (piece.numel + 31) / 32);
      }
      EXPECT_EQ(piece.state[2].eq(3.0 + static_cast<double>(piece.entry)).sum().item<std::int64_t>(), piece.numel);
      EXPECT_EQ(piece.state[3].item<std::int64_t>(), 5);
    }
    store.release(sub_group, false);
  }
}

TEST(ParameterStoreTiles, AreReadWithoutBeingShown) {
  FakeStore fake;
  Offloaded offloaded(fake, {state("first", 1)});
  ParameterStore& store = offloaded.store;
  const at::Tensor read = at::zeros({40'000});
  store.read_stored(0, 0, 30'000, read);
  EXPECT_THAT(values(read), Each(1)) << "before the first update";
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (Piece& piece : store.pieces(sub_group)) {
      piece.state[0].copy_(at::arange(piece.offset, piece.offset + piece.numel, at::kFloat));
    }
    store.release(sub_group, true);
  }
  EXPECT_FALSE(store.is_here(0, 0));
  EXPECT_TRUE(store.is_here(0, ParameterStore::kMaster)) << "in fp32 the parameter is the master";
  store.read_stored(0, 0, 30'000, read);
  EXPECT_TRUE(read.equal(at::arange(30'000, 70'000, at::kFloat))) << "over the bounds of tiles";
}

}  // namespace
}  // namespace capstan
