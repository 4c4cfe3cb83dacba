#include "core/zero/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace capstan {
namespace {

std::vector<Partition::Parameter> parameters_of(const std::vector<std::int64_t>& numels, bool whole = false) {
  std::vector<Partition::Parameter> parameters;
  for (const std::int64_t numel : numels) parameters.push_back({numel, whole});
  return parameters;
}

TEST(Partition, FillsBucketsFromTheLastParameterOn) {
  const Partition partition(parameters_of({10, 20, 100, 5}), 30, 1);
  // 5 | 100, which is larger than a bucket | 20 and 10
  ASSERT_EQ(partition.buckets().size(), 3u);
  EXPECT_EQ(partition.bucket_of(3), 0u);
  EXPECT_EQ(partition.bucket_of(2), 1u);
  EXPECT_EQ(partition.bucket_of(1), 2u);
  EXPECT_EQ(partition.bucket_of(0), 2u);
  EXPECT_EQ(Partition(parameters_of({10, 20, 100, 5}), 0, 1).buckets().size(), 4u);
  EXPECT_TRUE(Partition({}, 10, 3).buckets().empty());
}

/// Every element belongs to one rank, parts are cut at blocks, and rising ranks own rising ranges.
void expect_cover(const Partition& partition, const std::vector<std::int64_t>& numels, int ranks, bool whole) {
  for (std::size_t i = 0; i < numels.size(); ++i) {
    std::int64_t position = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range part = partition.part(i, rank);
      if (part.numel == 0) continue;
      EXPECT_EQ(part.offset, position);
      EXPECT_EQ(part.offset % Partition::kBlock, 0);
      if (whole) {
        EXPECT_EQ(part.numel, numels[i]);
      }
      position += part.numel;
    }
    EXPECT_EQ(position, numels[i]);
    EXPECT_EQ(partition.first(i) % Partition::kAlignment, 0);
  }
}

TEST(Partition, GivesEveryElementToOneRank) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> numels(random() % 12);
    for (auto& numel : numels) numel = static_cast<std::int64_t>(random() % (random() % 2 ? 30 : 60'000));
    const int ranks = 1 + static_cast<int>(random() % 5);
    const bool whole = random() % 2 == 0;
    const auto bucket = static_cast<std::int64_t>(random() % 2 ? 1 : random() % 100'000);
    expect_cover(Partition(parameters_of(numels, whole), bucket, ranks), numels, ranks, whole);
  }
}

TEST(Partition, SpreadsEveryBucketOverAllRanks) {
  const std::vector<std::int64_t> numels(8, 1 << 19);
  const Partition partition(parameters_of(numels), 1 << 20, 4);
  ASSERT_EQ(partition.buckets().size(), 4u);
  for (const Bucket& bucket : partition.buckets()) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(bucket.rank_first[rank + 1] - bucket.rank_first[rank], 1 << 18);
    }
  }
}

TEST(Partition, MakesNoBucketThatWouldPutOffTheEndOfAnExchange) {
  const Partition partition(parameters_of({100, 3 << 20, 1024, 1 << 20, 1024, 1 << 20}), 500'000'000, 2);
  std::vector<std::int64_t> numels;
  for (const Bucket& bucket : partition.buckets()) numels.push_back(bucket.numel);
  EXPECT_EQ(numels, (std::vector<std::int64_t>{(1 << 20) + 1024, (1 << 20) + 1024, 3 << 20, 112}));  // aligned
}

TEST(Partition, BalancesWhatCannotBeCut) {
  // Twelve parameters of less than a block, each a bucket of its own.
  const std::vector<std::int64_t> numels(12, 1600);
  for (const int ranks : {2, 3, 4}) {
    const Partition partition(parameters_of(numels), 1, ranks);
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(partition.owned(rank), 12 * 1600 / ranks);
  }
}

TEST(Partition, SharesLargeModelsOutWithinABlock) {
  const std::vector<std::int64_t> numels = {1'000'003, 77, 250'001, 4096, 999'999};
  const Partition partition(parameters_of(numels), 300'000, 3);
  const std::int64_t all = std::accumulate(numels.begin(), numels.end(), std::int64_t{0});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NEAR(static_cast<double>(partition.owned(rank)), static_cast<double>(all) / 3, Partition::kBlock);
  }
}

}  // namespace
}  // namespace capstan
