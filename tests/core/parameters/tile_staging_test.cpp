#include "core/parameters/tile_staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/errors.hpp"
#include "tests/core/memory/fake_store.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Show = TileStaging::Show;

/// Tiles of 64 bytes of parameters, 32 of masters, 64 of states and 32 of gradients.
std::vector<TileStaging::Tile> tiles(std::size_t count) {
  TileStaging::Tile tile;
  tile.parameters = {64, 64, 0, 64};
  tile.states = {128, 32, 0, 96};
  return std::vector<TileStaging::Tile>(count, tile);
}

void fill(std::byte* memory, std::size_t bytes, int value) { std::memset(memory, value, bytes); }

TEST(TileStaging, ShowsEveryTileAsItWasReleasedLast) {
  for (const bool overlapped : {true, false}) {
    for (const std::size_t slots : {1, 2, 3, 5}) {
      FakeStore fake;
      const auto device = fake.device();
      TileStaging staging(tiles(7), {device.get(), device.get(), slots, overlapped, overlapped});
      std::vector<int> known(7, -1);
      std::mt19937 random(static_cast<unsigned>(slots));
      for (int round = 0; round < 200; ++round) {
        const std::size_t tile = random() % 7;
        if (random() % 8 == 0) staging.prefetch();
        const bool updated = staging.acquire(tile, known[tile] < 0 ? Show::kNothing : Show::kValues);
        ASSERT_EQ(updated, known[tile] >= 0);
        if (updated) {
          ASSERT_EQ(std::to_integer<int>(staging.parameters_memory(tile)[63]), known[tile]);
          ASSERT_EQ(std::to_integer<int>(staging.states_memory(tile)[95]), known[tile]);
        }
        const bool changed = known[tile] < 0 || random() % 2 == 0;
        if (changed) {
          known[tile] = static_cast<int>(random() % 200);
          fill(staging.parameters_memory(tile), 64, known[tile]);
          fill(staging.states_memory(tile), 96, known[tile]);
        }
        staging.release(tile, changed);
      }
    }
  }
}

TEST(TileStaging, ReadsAheadAndWritesBehind) {
  FakeStore fake;
  const auto device = fake.device();
  TileStaging staging(tiles(5), {device.get(), device.get(), 3, true, true});
  for (std::size_t i = 0; i < 5; ++i) {
    staging.acquire(i, Show::kNothing);
    staging.release(i, true);
  }
  staging.acquire(0, Show::kValues);
  const auto reads = [&] {
    std::vector<std::uint64_t> of;
    for (const FakeStore::Move& move : fake.moves) {
      if (!move.write && move.buffer % 2 == 0) of.push_back(move.buffer / 2);
    }
    return of;
  };
  EXPECT_EQ(reads(), (std::vector<std::uint64_t>{0, 1}));
  staging.release(0, true);
  EXPECT_GT(fake.under_way(), 1u) << "tile 1 is being read and tile 0 written";
  staging.acquire(1, Show::kValues);
  EXPECT_EQ(reads(), (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST(TileStaging, DoesOneAfterTheOtherWhereItIsToldTo) {
  FakeStore fake;
  const auto device = fake.device();
  TileStaging staging(tiles(3), {device.get(), device.get(), 1, false, false});
  for (std::size_t i = 0; i < 3; ++i) {
    staging.acquire(i, Show::kNothing);
    staging.release(i, true);
    EXPECT_EQ(fake.under_way(), 0u);
  }
  const std::size_t before = fake.moves.size();
  staging.prefetch();
  staging.acquire(1, Show::kValues);
  EXPECT_EQ(fake.moves.size(), before + 2) << "two buffers of one tile";
}

TEST(TileStaging, ReadsBeforeTheFirstUpdateWhatIsInitialisedAlone) {
  FakeStore fake;
  const auto device = fake.device();
  TileStaging staging(tiles(1), {device.get(), device.get(), 3, true, true});
  fill(fake.buffers[staging.states_buffer(0)].data(), 32, 7);
  EXPECT_FALSE(staging.acquire(0, Show::kValues));
  EXPECT_EQ(std::to_integer<int>(staging.states_memory(0)[31]), 7);
  EXPECT_EQ(fake.moves.back(), (FakeStore::Move{staging.states_buffer(0), 0, 32, false}));
  staging.release(0, true);
  EXPECT_TRUE(staging.acquire(0, Show::kValues));
  EXPECT_EQ(fake.moves.back(), (FakeStore::Move{staging.states_buffer(0), 0, 96, false}));
}

TEST(TileStaging, ShowsGradientsOfThisStepAlone) {
  FakeStore fake;
  const auto device = fake.device();
  TileStaging staging(tiles(2), {device.get(), device.get(), 2, true, true});
  for (std::size_t i = 0; i < 2; ++i) {
    staging.acquire(i, Show::kNothing);
    staging.release(i, true);
  }
  for (const int step : {1, 2}) {
    staging.prefetch();
    for (std::size_t i = 0; i < 2; ++i) fill(fake.buffers[staging.states_buffer(i)].data() + 96, 32, step);
    staging.set_gradients(true);
    for (std::size_t i = 0; i < 2; ++i) {
      staging.acquire(i, Show::kValues);
      EXPECT_EQ(std::to_integer<int>(staging.states_memory(i)[127]), step) << "tile " << i;
      staging.release(i, true);
    }
    staging.set_gradients(false);
  }
  for (const FakeStore::Move& move : fake.moves) {
    if (move.write) {
      EXPECT_LE(move.offset + move.bytes, 96u) << "gradients are not written back";
    }
  }
}

TEST(TileStaging, KeepsResidentStatesInMemory) {
  FakeStore fake;
  const auto device = fake.device();
  std::vector<TileStaging::Tile> two = tiles(2);
  two[0].parameters = two[1].parameters = {};
  two[0].states_resident = true;
  TileStaging staging(two, {nullptr, device.get(), 3, true, true});
  EXPECT_EQ(fake.buffers.size(), 1u);
  for (const int tile : {0, 1}) {
    staging.acquire(static_cast<std::size_t>(tile), Show::kNothing);
    fill(staging.states_memory(static_cast<std::size_t>(tile)), 96, 9 - tile);
    staging.release(static_cast<std::size_t>(tile), true);
  }
  EXPECT_TRUE(staging.acquire(0, Show::kValues));
  EXPECT_EQ(std::to_integer<int>(staging.states_memory(0)[95]), 9);
  EXPECT_TRUE(staging.acquire(1, Show::kValues));
  EXPECT_EQ(std::to_integer<int>(staging.states_memory(1)[95]), 8);
}

TEST(TileStaging, SaysThatAWriteFailedUntilItIsGivenUp) {
  FakeStore fake;
  const auto device = fake.device();
  TileStaging staging(tiles(2), {device.get(), device.get(), 1, true, true});
  for (std::size_t i = 0; i < 2; ++i) {
    staging.acquire(i, Show::kNothing);
    staging.release(i, true);
  }
  staging.acquire(0, Show::kValues);
  fake.failing.insert(fake.last_ticket() + 1);
  staging.release(0, true);
  for (const std::size_t tile : {0, 1}) {
    EXPECT_THAT([&] { staging.acquire(tile, Show::kValues); },
                ThrowsMessage<RuntimeFault>(HasSubstr("offload 'fake': the fake disk is broken These were parameters "
                                                      "of tile 0, bytes 0 to 64.")));
  }
  // A checkpoint overwrites everything.
  staging.give_up();
  staging.acquire(0, Show::kNothing);
  fill(staging.states_memory(0), 96, 5);
  staging.release(0, true);
  staging.acquire(0, Show::kValues);
  EXPECT_EQ(std::to_integer<int>(staging.states_memory(0)[95]), 5);
}

TEST(TileStaging, LendsItsMemoryAndTakesItBack) {
  FakeStore fake;
  const auto device = fake.device();
  {
    TileStaging staging(tiles(4), {device.get(), device.get(), 3, true, true});
    EXPECT_EQ(fake.lent, 3);
    staging.acquire(0, Show::kNothing);
    staging.release(0, true);
  }
  EXPECT_EQ(fake.lent, 0);
  EXPECT_EQ(fake.under_way(), 0u);
}

}  // namespace
}  // namespace capstan
