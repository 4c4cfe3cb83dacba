#include "core/config/resolve/elastic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;
using Sizes = std::vector<std::int64_t>;

ElasticityConfig settings(Sizes micro_batches, std::int64_t max_batch, double version = 0.1) {
  ElasticityConfig made;
  made.micro_batches = std::move(micro_batches);
  made.max_batch = max_batch;
  made.version = version;
  return made;
}

const Sizes kFirstSizes = {1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14,  15,  20,  21,  24,  28,
                           30, 35, 40, 42, 56, 60, 70, 84, 105, 120, 140, 168, 210, 280, 420, 840};

TEST(Elastic, GivesTheMeasuredBatchesOfVersion01) {
  const ElasticBatch first = elastic_batch(settings({2, 4, 6}, 2000), 4);
  EXPECT_EQ(first.train_batch, 1680);
  EXPECT_EQ(first.sizes, kFirstSizes);
  EXPECT_EQ(first.micro_batch, 6);
  EXPECT_EQ(first.accumulation, 70);

  ElasticityConfig wide = settings({8, 12, 16, 17}, 10000);
  wide.min_devices = 32;
  wide.max_devices = 1500;
  const ElasticBatch second = elastic_batch(wide, 64);
  EXPECT_EQ(second.train_batch, 9792);
  EXPECT_THAT(second.sizes, ElementsAre(32, 34, 36, 48, 51, 64, 68, 72, 96, 102, 136, 144, 153, 192, 204, 272, 288, 306,
                                        408, 576, 612, 816, 1224));
  EXPECT_EQ(second.micro_batch, 17);
  EXPECT_THROW(elastic_batch(wide, 50), ConfigError);
  EXPECT_THROW(elastic_batch(wide, 128), ConfigError);

  ElasticityConfig tiny = settings({1, 2, 3, 4}, 4);
  tiny.max_devices = 4;
  EXPECT_THAT(elastic_batch(tiny, {}).sizes, ElementsAre(1, 2, 4));
  EXPECT_EQ(elastic_batch(tiny, {}).train_batch, 4);

  const ElasticBatch without_multiple = elastic_batch(settings({8, 10, 12}, 100), {});
  EXPECT_EQ(without_multiple.train_batch, 96);
  EXPECT_THAT(without_multiple.sizes, ElementsAre(1, 2, 3, 4, 6, 8, 12));

  ElasticityConfig primes = settings({1, 2, 3, 7}, 32);
  primes.max_devices = 1500;
  EXPECT_EQ(elastic_batch(primes, 4).train_batch, 24);
  EXPECT_EQ(elastic_batch(primes, 4).micro_batch, 3);

  const ElasticBatch large = elastic_batch(settings({1}, 1'500'000), {});
  EXPECT_EQ(large.train_batch, 720720);
  EXPECT_EQ(large.sizes.size(), 198u);
}

TEST(Elastic, HasNoSizesOutsideTheRange) {
  ElasticityConfig range = settings({2, 4, 6}, 2000);
  range.min_devices = 841;
  range.max_devices = 850;
  EXPECT_THAT(elastic_batch(range, {}).sizes, ElementsAre());
  EXPECT_THAT([&] { elastic_batch(range, 845); },
              ThrowsMessage<ConfigError>("elasticity: the data-parallel size 845 does not fit the elastic batch 2. "
                                         "Sizes that do: none."));
}

TEST(Elastic, GivesTheMeasuredBatchesOfVersion02) {
  const ElasticBatch same = elastic_batch(settings({2, 4, 6}, 2000, 0.2), 7);
  EXPECT_EQ(same.train_batch, 1680);
  EXPECT_EQ(same.sizes, kFirstSizes);
  EXPECT_EQ(same.micro_batch, 6);

  const ElasticBatch alone = elastic_batch(settings({2, 4, 6}, 2000, 0.2), 16);
  EXPECT_EQ(alone.train_batch, 1984);
  EXPECT_THAT(alone.sizes, ElementsAre(16));
  EXPECT_EQ(alone.micro_batch, 4);

  const ElasticBatch eleven = elastic_batch(settings({2, 4, 6}, 2000, 0.2), 11);
  EXPECT_EQ(eleven.train_batch, 1980);
  EXPECT_EQ(eleven.micro_batch, 6);

  ElasticityConfig nodes = settings({2, 4, 6}, 2000, 0.2);
  nodes.devices_per_node = 8;
  const ElasticBatch by_nodes = elastic_batch(nodes, 16);
  EXPECT_EQ(by_nodes.train_batch, 1920);
  EXPECT_THAT(by_nodes.sizes, ElementsAre(8, 16, 24, 32, 40, 48, 64, 80, 96, 120, 160, 192, 240, 320, 480, 960));
  EXPECT_EQ(by_nodes.micro_batch, 6);

  nodes.model_parallel = 2;
  const ElasticBatch halves = elastic_batch(nodes, 16);
  EXPECT_EQ(halves.train_batch, 1920);
  EXPECT_EQ(halves.size, 8);
  EXPECT_THAT(halves.sizes,
              ElementsAre(4, 8, 12, 16, 20, 24, 32, 40, 48, 60, 64, 80, 96, 120, 160, 192, 240, 320, 480, 960));
  EXPECT_EQ(halves.micro_batch, 6);
}

TEST(Elastic, RefusesACapThatIsTooSmallForTheCurrentSize) {
  EXPECT_THAT(
      [] {
        elastic_batch(settings({2, 4, 6}, 20, 0.2), 16);
      },
      ThrowsMessage<ConfigError>("elasticity.max_train_batch_size: 20 is too small for 16 data-parallel ranks: "
                                 "each takes at least 2."));
}

TEST(Elastic, NeedsTheNumberOfDevicesInVersion02) {
  EXPECT_THAT([] { elastic_batch(settings({2}, 20, 0.2), {}); },
              ThrowsMessage<ConfigError>(
                  "elasticity: version 0.2 needs the number of devices. Give --world, or set WORLD_SIZE."));
}

/// Every size tried one by one, as rules 50 to 52 say it.
Sizes brute_sizes(std::int64_t batch, const ElasticityConfig& s) {
  Sizes sizes;
  for (std::int64_t size = s.min_devices; size <= std::min(s.max_devices, batch); ++size) {
    const bool fits = std::any_of(s.micro_batches.begin(), s.micro_batches.end(),
                                  [&](std::int64_t micro) { return batch % (micro * size) == 0; });
    if (fits) sizes.push_back(size);
  }
  return sizes;
}

std::int64_t brute_batch(const ElasticityConfig& s) {
  constexpr std::int64_t kComposites[] = {1,   2,   4,   6,   12,  24,  36,   48,   60,
                                          120, 180, 240, 360, 720, 840, 1260, 1680, 2520};
  Sizes bases = s.micro_batches;
  bases.push_back(std::accumulate(bases.begin(), bases.end(), std::int64_t{1},
                                  [](std::int64_t a, std::int64_t b) { return std::lcm(a, b); }));
  std::int64_t best = *std::min_element(s.micro_batches.begin(), s.micro_batches.end());
  std::size_t most = 0;
  for (const std::int64_t base : bases) {
    std::int64_t candidate = 0;
    for (const std::int64_t composite : kComposites) {
      if (base * composite <= s.max_batch) candidate = base * composite;
    }
    if (candidate == 0) continue;
    const std::size_t count = brute_sizes(candidate, s).size();
    const bool better = s.prefer_larger ? candidate > best : candidate < best;
    if (count > most || (count == most && count > 0 && better)) {
      best = candidate;
      most = count;
    }
  }
  return best;
}

TEST(Elastic, AgreesWithABruteForceSearch) {
  std::mt19937 random(7);
  const auto any = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    ElasticityConfig made = settings({}, any(16, 2500));
    for (std::int64_t i = any(1, 4); i > 0; --i) made.micro_batches.push_back(any(1, 16));
    made.min_devices = any(1, 8);
    made.max_devices = any(8, 400);
    made.prefer_larger = any(0, 1) == 1;
    const ElasticBatch batch = elastic_batch(made, {});
    ASSERT_EQ(batch.train_batch, brute_batch(made)) << "round " << round;
    const Sizes expected = batch.sizes.empty() ? Sizes{} : brute_sizes(batch.train_batch, made);
    ASSERT_EQ(batch.sizes, expected) << "round " << round;
  }
}

TEST(Elastic, NamesWhatACheckpointsRunHadOtherwise) {
  const auto effective = [](const std::string& more) {
    return Json::parse(R"({"elasticity": {"enabled": true, "max_train_batch_size": 2000, "version": 0.2, )" + more +
                       "}}");
  };
  const Json saved = effective(R"("micro_batch_sizes": [2, 4, 6], "max_gpus": 64)");
  const Json wider = effective(R"("micro_batch_sizes": [2, 4, 6], "max_gpus": 128)");
  const Json turned = effective(R"("micro_batch_sizes": [6, 4, 2], "max_gpus": 64)");

  EXPECT_EQ(elastic_conflict(saved, saved), "");
  EXPECT_EQ(elastic_conflict(saved, wider), "");
  EXPECT_EQ(
      elastic_conflict(saved, turned),
      "elasticity.micro_batch_sizes is [6, 4, 2], and the checkpoint was saved with [2, 4, 6]. Resume with the same "
      "value, or start from its weights alone with --init-from.");
  EXPECT_EQ(elastic_conflict(saved, Json::parse(R"({"elasticity": {"enabled": false}})")), "");
  EXPECT_EQ(elastic_conflict(Json::parse("{}"), saved), "");
}

}  // namespace
}  // namespace capstan
