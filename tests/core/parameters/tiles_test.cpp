#include "core/parameters/tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace capstan {
namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::uint64_t kAlignment = 16;

struct Region {
  std::uint64_t begin, bytes;
};

/// Regions that are not empty begin at multiples of the alignment, and none reaches into another or beyond the buffer.
void expect_apart(std::vector<Region> regions, std::uint64_t buffer) {
  std::erase_if(regions, [](const Region& region) { return region.bytes == 0; });
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  std::uint64_t end = 0;
  for (const Region& region : regions) {
    EXPECT_EQ(region.begin % kAlignment, 0u);
    EXPECT_GE(region.begin, end);
    end = region.begin + region.bytes;
  }
  EXPECT_LE(end, buffer);
}

std::vector<TileEntry> some_entries(std::mt19937& random) {
  std::vector<TileEntry> entries(1 + random() % 8);
  for (TileEntry& entry : entries) {
    entry.numel = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 500);
    entry.planned = entry.numel + static_cast<std::int64_t>(random() % 3);
    entry.may_be_cut = random() % 3 > 0;
    entry.compute = random() % 2 ? 2 : 0;
    entry.master_with_parameters = entry.compute == 0 && random() % 2 ? 4 : 0;
    entry.master = entry.master_with_parameters == 0 && random() % 2 ? 4 : 0;
    entry.gradient = random() % 2 ? 4 : 0;
    entry.states = {{1, 4, true}, {32, 4, random() % 2 == 0}, {1, 1, random() % 2 == 0}};
  }
  return entries;
}

std::uint64_t bytes_of(const TileEntry::State& state, std::int64_t numel) {
  return state.there ? static_cast<std::uint64_t>((numel + state.block - 1) / state.block) * state.bytes : 0;
}

TEST(Tiles, HoldEveryElementOnceAndNothingInTheSamePlace) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TileEntry> entries = some_entries(random);
    const std::int64_t limit = kBlock + static_cast<std::int64_t>(random() % 300);
    std::vector<std::int64_t> covered(entries.size());
    for (const PlannedTile& tile : plan_tiles(entries, limit, kBlock, kAlignment)) {
      std::vector<Region> parameters, states;
      std::int64_t elements = 0, not_empty = 0;
      for (const TilePiece& piece : tile.pieces) {
        const TileEntry& entry = entries[piece.entry];
        const auto numel = static_cast<std::uint64_t>(piece.numel);
        EXPECT_EQ(piece.offset, covered[piece.entry]);
        EXPECT_EQ(piece.offset % kBlock, 0);
        EXPECT_TRUE(entry.may_be_cut || piece.numel == entry.numel);
        covered[piece.entry] += piece.numel;
        elements += piece.numel;
        not_empty += piece.numel > 0;
        parameters.push_back({piece.compute, numel * entry.compute});
        EXPECT_LE(piece.compute + numel * entry.compute, tile.copies_end);
        if (entry.master_with_parameters > 0) parameters.push_back({piece.master, numel * 4});
        if (entry.master > 0) {
          states.push_back({piece.master, numel * 4});
          EXPECT_LE(piece.master + numel * 4, tile.masters_end);
        }
        for (std::size_t k = 0; k < entry.states.size(); ++k) {
          states.push_back({piece.states[k], bytes_of(entry.states[k], piece.numel)});
          EXPECT_LE(states.back().begin + states.back().bytes, tile.gradients_begin);
        }
        states.push_back({piece.gradient, numel * entry.gradient});
        EXPECT_TRUE(numel * entry.gradient == 0 || piece.gradient >= tile.gradients_begin);
      }
      EXPECT_TRUE(elements <= limit || not_empty == 1 ||
                  std::none_of(tile.pieces.begin(), tile.pieces.end(),
                               [&](const TilePiece& piece) { return entries[piece.entry].may_be_cut; }));
      expect_apart(parameters, tile.parameter_bytes);
      expect_apart(states, tile.state_bytes);
    }
    for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(covered[i], entries[i].numel) << i;
  }
}

TEST(Tiles, BeginAtTheSameParametersOnRanksWhoseShareDiffers) {
  const auto of_rank = [](std::int64_t part) {
    std::vector<TileEntry> entries(6);
    for (TileEntry& entry : entries) {
      entry.numel = part;
      entry.planned = 100;
    }
    std::vector<std::size_t> first;
    for (const PlannedTile& tile : plan_tiles(entries, 250, kBlock, kAlignment)) {
      first.push_back(tile.pieces.front().entry);
    }
    return first;
  };
  EXPECT_EQ(of_rank(200), (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(of_rank(0), of_rank(200));
}

}  // namespace
}  // namespace capstan
