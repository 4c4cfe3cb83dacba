#include "core/zero/offload_plan.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/zero/partition.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kBlock = Partition::kBlock;
constexpr std::int64_t kNoBound = INT64_MAX, kGroup = 1'000'000'000;

TEST(OffloadStaging, IsThreeTilesOf32MiBForAModelThatIsLarge) {
  // fp32 masters and two moments, and what else 16 bytes hold.
  EXPECT_EQ(offload_staging(16, 0, kGroup, 1'500'000'000, kNoBound), (OffloadStaging{2 * 1024 * 1024, 3}));
  // 12 bytes: the most whole blocks within 32 MiB.
  EXPECT_EQ(offload_staging(12, 0, kGroup, 1'500'000'000, kNoBound), (OffloadStaging{85 * kBlock, 3}));
}

TEST(OffloadStaging, IsOneTileWhereEverythingFitsInOne) {
  EXPECT_EQ(offload_staging(12, 0, kGroup, 1000, kNoBound), (OffloadStaging{1000, 1}));
  EXPECT_EQ(offload_staging(12, 0, kGroup, 0, kNoBound), OffloadStaging{});
  EXPECT_EQ(offload_staging(0, 0, kGroup, 1000, kNoBound), OffloadStaging{});
}

TEST(OffloadStaging, HoldsTheLargestParameterOfAnOptimizerThatNeedsThemWhole) {
  EXPECT_EQ(offload_staging(12, 50'000'001, kGroup, 1'500'000'000, kNoBound), (OffloadStaging{50'000'001, 3}));
  // The bound then takes slots, and in the end has to give way.
  EXPECT_EQ(offload_staging(12, 50'000'001, kGroup, 1'500'000'000, 1'300'000'000), (OffloadStaging{50'000'001, 2}));
  EXPECT_EQ(offload_staging(12, 50'000'001, kGroup, 1'500'000'000, 1), (OffloadStaging{50'000'001, 1}));
}

TEST(OffloadStaging, ShrinksTilesBeforeItGivesUpOverlap) {
  // buffer_count 4, sub_group_size 1e6: 16 MB, thirds of 444,444 elements of 12 bytes.
  EXPECT_EQ(offload_staging(12, 0, 1'000'000, 100'000'000, staging_bound(4, 1'000'000)),
            (OffloadStaging{13 * kBlock, 3}));
  EXPECT_EQ(offload_staging(12, 0, 1'000'000, 100'000'000, 2 * 12 * kBlock), (OffloadStaging{kBlock, 2}));
  EXPECT_EQ(offload_staging(12, 0, 1, 100'000'000, 0), (OffloadStaging{kBlock, 1}));
}

TEST(OffloadStaging, HasOneTileWhereNothingOverlaps) {
  OffloadOptimizerConfig offload;
  EXPECT_EQ(tile_slots(offload), 3);
  offload.pipeline_read = false;
  EXPECT_EQ(tile_slots(offload), 2);
  offload.pipeline_write = false;
  EXPECT_EQ(tile_slots(offload), 1);
  EXPECT_EQ(offload_staging(16, 0, kGroup, 1'500'000'000, kNoBound, 1), (OffloadStaging{2 * 1024 * 1024, 1}));
  EXPECT_EQ(offload_staging(16, 0, kGroup, 1'500'000'000, 16 * kBlock, 1), (OffloadStaging{kBlock, 1}));
}

TEST(OffloadInForce, KeepsNoParametersInMemoryUnlessTheSectionDoes) {
  ZeroConfig zero;
  EXPECT_EQ(parameter_offload_in_force(zero).max_in_cpu, 0);
  EXPECT_EQ(optimizer_offload_in_force(zero), OffloadOptimizerConfig{});
  zero.offload_param.emplace().device = "nvme";
  EXPECT_EQ(parameter_offload_in_force(zero).max_in_cpu, 1'000'000'000);
  zero.offload_optimizer.emplace().ratio = 0.5;
  EXPECT_EQ(optimizer_offload_in_force(zero).ratio, 1.0);  // its device is none
  zero.offload_optimizer->device = "nvme";
  EXPECT_EQ(optimizer_offload_in_force(zero).ratio, 0.5);
}

/// The largest tile of whole blocks of which three keep within every limit, by trying all; 0: there is none.
std::int64_t largest_tile(std::int64_t bytes, std::int64_t least, std::int64_t group, std::int64_t elements,
                          std::int64_t bound) {
  std::int64_t found = 0;
  for (std::int64_t tile = kBlock; tile <= elements && tile <= group; tile += kBlock) {
    if (tile >= least && tile * bytes <= 32 * 1024 * 1024 && 3 * tile * bytes <= bound) found = tile;
  }
  return found;
}

TEST(OffloadStaging, IsWhatTryingEveryTileFinds) {
  std::mt19937_64 random(7);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t bytes = between(1, 40), elements = between(1, 20'000'000), group = between(1, 8'000'000);
    const std::int64_t whole = i % 2 ? between(1, elements) : 0, bound = between(0, 300'000'000);
    SCOPED_TRACE(std::to_string(bytes) + " " + std::to_string(whole) + " " + std::to_string(group) + " " +
                 std::to_string(elements) + " " + std::to_string(bound));
    const OffloadStaging staging = offload_staging(bytes, whole, group, elements, bound);
    const std::int64_t tile = staging.tile_elements, taken = staging.slots * tile * bytes;
    EXPECT_GE(tile, whole);
    EXPECT_LE((staging.slots - 1) * tile, elements);
    if (tile == elements && tile <= group && taken <= std::min<std::int64_t>(bound, 32 << 20)) {
      EXPECT_EQ(staging.slots, 1);
    } else if (const std::int64_t best = largest_tile(bytes, whole, group, elements, bound); best > 0) {
      EXPECT_EQ(tile, best);
      EXPECT_LE(taken, bound);
    } else {
      EXPECT_EQ(tile, std::min(elements, std::max(kBlock, whole)));  // no smaller one would do
      EXPECT_TRUE(taken <= bound || staging.slots == 1);
    }
  }
}

TEST(OffloadStaging, CountsABoundThatNoMachineHasAsNone) {
  EXPECT_EQ(staging_bound(4, 1'000'000), 16'000'000);
  EXPECT_EQ(staging_bound(1'000'000'000'000, 1'000'000'000), INT64_MAX);
  EXPECT_EQ(staging_bound(0, 5), 0);
}

TEST(OffloadRatio, LeavesTheFirstSubGroupsInMemory) {
  EXPECT_EQ(sub_groups_in_memory(1.0, 7), 0);
  EXPECT_EQ(sub_groups_in_memory(0.5, 7), 3);
  EXPECT_EQ(sub_groups_in_memory(0.0, 7), 7);
}

TEST(ParametersAway, AreThoseThatMaxInCpuHasNoRoomFor) {
  const std::int64_t numels[] = {100, 1000, 50, 7};
  EXPECT_EQ(stored_parameters(numels, 1, 0), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(stored_parameters(numels, 1, 150), (std::vector<bool>{false, true, false, true}));
  // Parts of two ranks: 50, 500, 25, 4.
  EXPECT_EQ(stored_parameters(numels, 2, 79), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(stored_parameters(numels, 2, 1'000'000'000), (std::vector<bool>{false, false, false, false}));
}

}  // namespace
}  // namespace capstan
