#include "plugins/optimizers/onebit/compressed_all_reduce.hpp"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "capstan/sdk/share.hpp"
#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/host_device.hpp"
#include "tests/plugins/meeting.hpp"
#include "tests/plugins/optimizers/onebit_reference.hpp"

namespace capstan::testing {
namespace {

using optimizers::CompressedAllReduce;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pointwise;

MATCHER_P(Near, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

/// error += factor * values. Returns the sum of squares of the result.
double add_and_measure(const float* values, float factor, float* error, std::size_t count) {
  double squares = 0;
  std::vector<float> given(values, values + count);
  optimizers::host_kernels()->add_gradient({given.data(), optimizers::ElementType::kFloat32}, factor, error, count,
                                           &squares);
  return squares;
}

/// One rank: its errors, and a host whose collectives meet with the other ranks'.
class Rank {
 public:
  Rank(Seat seat, std::vector<std::size_t> lengths, CompressedAllReduce::Over over = CompressedAllReduce::Over::kDevice)
      : host_(seat),
        lengths_(std::move(lengths)),
        exchange(device_, seat.rank, seat.world_size, lengths_, over),
        worker_error(exchange.worker_error_size()),
        server_error(exchange.server_error_size()) {}

  /// The averages of all buffers, which stand one after the other in `values`.
  std::vector<float> run(const std::vector<float>& values) {
    std::vector<double> squares(lengths_.size());
    for (std::size_t b = 0, at = 0; b < lengths_.size(); at += lengths_[b++]) {
      squares[b] = add_and_measure(values.data() + at, 1.0f, worker_error.data() + at, lengths_[b]);
    }
    exchange.exchange(collectives(), squares.data(), worker_error.data(), server_error.data());
    std::vector<float> averages(values.size());
    for (std::size_t b = 0, at = 0; b < lengths_.size(); at += lengths_[b++]) {
      exchange.average(b, 0, lengths_[b], averages.data() + at);
    }
    return averages;
  }

  sdk::Collectives collectives() { return {host_.table(), &error_}; }

 private:
  PluginHost host_;
  capstan_error error_;
  std::vector<std::size_t> lengths_;
  optimizers::HostDevice device_;

 public:
  CompressedAllReduce exchange;
  std::vector<float> worker_error, server_error;
};

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() >> 40) / static_cast<float>(1 << 23) - 1.0f;
  return values;
}

TEST(CompressedAllReduce, SharesAreThoseOfTheTable) {
  struct Row {
    std::int64_t n, ranks, share;
  };
  for (const Row row : {Row{1, 1, 8}, Row{17, 1, 24}, Row{4, 2, 8}, Row{100, 2, 56}, Row{100, 3, 48}, Row{100, 4, 32},
                        Row{1000, 8, 128}, Row{100, 16, 16}}) {
    EXPECT_EQ(sdk::share_of(row.n, row.ranks), row.share) << row.n << " over " << row.ranks;
  }
}

TEST(CompressedAllReduce, GivesTheGoldenValues) {
  const std::vector<float> inputs[] = {{1, -2, 3, -4, 5, -6, 7, -8, 0, 1, 0, -1, 2, -2, 4, -4},
                                       {1, 1, 1, 1, -1, -1, -1, -1, 2, 2, -2, -2, .5, -.5, 0, 0}};
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    Rank rank(seat, {16});
    const auto first = rank.run(inputs[seat.rank]);
    const float a = 2.0558606f, b = 2.3322928f;
    EXPECT_THAT(first,
                Pointwise(Near(1e-6), std::vector<float>{a, -a, a, -a, a, -a, a, -a, b, b, b, -b, b, -b, b, -b}));
    if (seat.rank == 0) {
      const std::vector<float> begin(rank.worker_error.begin(), rank.worker_error.begin() + 5);
      EXPECT_THAT(begin,
                  Pointwise(Near(1e-6), std::vector<float>{-2.921097f, 1.921097f, -.921097f, -.078903f, 1.078903f}));
      EXPECT_THAT(rank.server_error,
                  Pointwise(Near(1e-6), std::vector<float>{.523406f, .714031f, .523406f, .714031f, -.714031f, -.523406f,
                                                           -.714031f, -.523406f}));
    }
    const auto second = rank.run(inputs[seat.rank]);
    const float c = 2.5882670f, d = 2.4109166f;
    EXPECT_THAT(second,
                Pointwise(Near(1e-6), std::vector<float>{-c, -c, c, -c, c, -c, c, -c, -d, -d, -d, d, d, -d, d, -d}));
  });
}

struct Size {
  std::uint32_t ranks;
  std::size_t count;
};

class AnySize : public ::testing::TestWithParam<Size> {};

/// Calls of all ranks in which no sign hangs on rounding: the first seed that makes such.
struct SimulatedCalls {
  SimulatedCalls(std::uint32_t ranks, std::size_t count) : reference(ranks, count) {
    do {
      ++seed;
      reference = ReferenceExchange(ranks, count);
      averages.clear();
      for (int call = 0; call < calls(count); ++call) {
        std::vector<Vector> all;
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const auto own = values(count, call, rank);
          all.emplace_back(own.begin(), own.end());
        }
        averages.push_back(reference.run(all));
      }
    } while (reference.closest < 1e-6 && seed < 200);
  }
  static int calls(std::size_t count) { return count < 2000 ? 12 : 2; }
  std::vector<float> values(std::size_t count, int call, std::uint32_t rank) const {
    return random_values(count, 100000 * seed + 1000 * static_cast<std::uint64_t>(call) + rank);
  }

  std::uint64_t seed = 0;
  ReferenceExchange reference;
  std::vector<Vector> averages;
};

TEST_P(AnySize, AgreesWithASimulationOfAllRanks) {
  const auto [ranks, count] = GetParam();
  const SimulatedCalls simulated(ranks, count);
  const ReferenceExchange& reference = simulated.reference;
  ASSERT_GE(reference.closest, 1e-6);
  Meeting meeting(ranks);
  meeting.run([&](Seat seat) {
    Rank rank(seat, {count});
    for (int call = 0; call < simulated.calls(count); ++call) {
      const auto average = rank.run(simulated.values(count, call, seat.rank));
      EXPECT_THAT(average, Pointwise(Near(2e-5), simulated.averages[static_cast<std::size_t>(call)]));
    }
    EXPECT_THAT(rank.worker_error, Pointwise(Near(2e-5), reference.worker_error[seat.rank]));
    const std::size_t begin = std::min(seat.rank * reference.share(), count);
    const std::size_t end = std::min(begin + reference.share(), count);
    for (std::size_t i = 0; i < rank.server_error.size(); ++i) {
      const double expected = begin + i < end ? reference.server_error[begin + i] : 0.0;
      EXPECT_NEAR(rank.server_error[i], expected, 2e-5);
    }
  });
}

std::vector<Size> sizes() {
  std::vector<Size> all;
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 5u}) {
    for (const std::size_t count : {1u, 2u, 7u, 8u, 9u, 31u, 64u, 65u, 127u, 1000u, 4099u, 16411u}) {
      all.push_back({ranks, count});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnySize, ::testing::ValuesIn(sizes()), [](const auto& test) {
  return std::to_string(test.param.count) + "Over" + std::to_string(test.param.ranks);
});

TEST(CompressedAllReduce, BuffersThatTravelTogetherGetWhatTheyGetAlone) {
  const std::vector<std::size_t> lengths = {17, 1, 640, 3, 1025};
  Meeting meeting(3);
  meeting.run([&](Seat seat) {
    Rank together(seat, lengths);
    std::vector<std::unique_ptr<Rank>> alone;
    for (const std::size_t length : lengths) alone.push_back(std::make_unique<Rank>(seat, std::vector{length}));
    for (int call = 0; call < 5; ++call) {
      const auto values = random_values(17 + 1 + 640 + 3 + 1025, 10 * call + seat.rank);
      const auto averages = together.run(values);
      for (std::size_t b = 0, at = 0; b < lengths.size(); at += lengths[b++]) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
        const auto wanted = alone[b]->run({begin, begin + static_cast<std::ptrdiff_t>(lengths[b])});
        const auto from = averages.begin() + static_cast<std::ptrdiff_t>(at);
        EXPECT_EQ(std::vector<float>(from, from + static_cast<std::ptrdiff_t>(lengths[b])), wanted) << b;
      }
    }
  });
}

TEST(CompressedAllReduce, TheWayThroughHostMemoryChangesNothing) {
  Meeting meeting(3);
  meeting.run([&](Seat seat) {
    Rank straight(seat, {100, 33}), around(seat, {100, 33}, CompressedAllReduce::Over::kHost);
    for (std::uint64_t call = 0; call < 3; ++call) {
      const std::vector<float> values = random_values(133, 10 * call + seat.rank);
      EXPECT_EQ(around.run(values), straight.run(values));
    }
    EXPECT_EQ(around.exchange.payload_bytes(), straight.exchange.payload_bytes());
  });
}

TEST(CompressedAllReduce, OnlyListedBuffersTakePart) {
  Meeting meeting(2);
  meeting.run([](Seat seat) {
    Rank rank(seat, {10, 20});
    rank.run(random_values(30, seat.rank));
    const std::vector<float> before(rank.worker_error.begin(), rank.worker_error.begin() + 10);
    const std::size_t active[] = {1};
    const double squares[] = {0, add_and_measure(random_values(20, 5).data(), 1.0f, rank.worker_error.data() + 10, 20)};
    rank.exchange.exchange(rank.collectives(), active, squares, rank.worker_error.data(), rank.server_error.data());
    EXPECT_EQ(std::vector<float>(rank.worker_error.begin(), rank.worker_error.begin() + 10), before);
  });
}

TEST(CompressedAllReduce, PartsOfAnAverageAreThoseOfTheWhole) {
  Meeting meeting(3);
  meeting.run([](Seat seat) {
    Rank rank(seat, {500});
    const auto whole = rank.run(random_values(500, seat.rank));
    for (const std::size_t begin : {std::size_t{0}, std::size_t{3}, std::size_t{166}, std::size_t{171}}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{5}, std::size_t{8}, std::size_t{200}}) {
        std::vector<float> part(count);
        rank.exchange.average(0, begin, count, part.data());
        const auto from = whole.begin() + static_cast<std::ptrdiff_t>(begin);
        EXPECT_EQ(part, std::vector<float>(from, from + static_cast<std::ptrdiff_t>(count))) << begin << " " << count;
      }
    }
  });
}

TEST(CompressedAllReduce, GivesTheSameBitsWithAnyNumberOfThreads) {
  constexpr std::size_t kCount = 700'001;
  std::vector<std::vector<float>> averages, errors;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    std::vector<float> values = random_values(kCount, 3), worker(kCount), server(sdk::share_of(kCount, 1));
    Meeting meeting(1);
    meeting.run([&](Seat seat) {
      Rank rank(seat, {kCount});
      rank.exchange.all_reduce(rank.collectives(), values, worker.data(), server.data());
    });
    averages.push_back(values);
    errors.push_back(worker);
  }
  EXPECT_EQ(averages[0], averages[1]);
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(CompressedAllReduce, SendsOneBitAnElementAndAScale) {
  Meeting meeting(4);
  meeting.run([&](Seat seat) {
    constexpr std::size_t kCount = 1 << 16;
    Rank rank(seat, {kCount});
    rank.run(random_values(kCount, seat.rank));
    const std::uint64_t share = kCount / 4;
    EXPECT_EQ(rank.exchange.payload_bytes(), 2 * 3 * (share / 8 + 4));
    EXPECT_EQ(meeting.sent(seat.rank, "all_to_all") + meeting.sent(seat.rank, "all_gather"),
              rank.exchange.payload_bytes());
    const double full = 2.0 * kCount * sizeof(float) * 3 / 4;  // bytes of an uncompressed all-reduce
    EXPECT_LE(static_cast<double>(rank.exchange.payload_bytes()), full / 32 * 1.02);
  });
}

TEST(CompressedAllReduce, WhatIsNotFiniteLeavesWithTheNextCall) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Meeting meeting(2);
    meeting.run([bad](Seat seat) {
      Rank rank(seat, {100});
      auto values = random_values(100, seat.rank);
      if (seat.rank == 1) values[7] = bad;
      const auto spoiled = rank.run(values);
      EXPECT_FALSE(std::isfinite(spoiled[0]));
      for (const float value : rank.run(random_values(100, seat.rank))) EXPECT_TRUE(std::isfinite(value));
    });
  }
}

TEST(CompressionKernels, PackTheFirstElementIntoTheMostSignificantBit) {
  std::vector<float> values = {1, -1, 0, -0.0f, -2, 3, -4, -5, 6, -7};
  std::uint8_t signs[2] = {};
  optimizers::compress_signs(values.data(), values.size(), 0.5f, signs);
  EXPECT_THAT(signs, ElementsAre(0b10110100, 0b10111111));  // zeros of either sign are +, and so is the padding
  EXPECT_THAT(values, ElementsAre(.5f, -.5f, -.5f, -.5f, -1.5f, 2.5f, -3.5f, -4.5f, 5.5f, -6.5f));
}

TEST(CompressionKernels, GiveTheSameOnEverySimdTarget) {
  const auto values = random_values(203, 1);
  struct Results {
    std::vector<std::uint8_t> signs = std::vector<std::uint8_t>(26);
    std::vector<float> error, sum, out = std::vector<float>(203);
    double squares = 0, sum_squares = 0;
  };
  std::vector<Results> all;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    Results& results = all.emplace_back();
    results.error = random_values(203, 2);
    results.sum = random_values(203, 3);
    results.squares = add_and_measure(values.data(), 0.5f, results.error.data(), 203);
    optimizers::compress_signs(results.error.data(), 203, 0.25f, results.signs.data());
    const std::uint8_t* const signs[] = {results.signs.data(), results.signs.data(), results.signs.data()};
    const float scales[] = {0.5f, 0.25f, 1.5f};
    results.sum_squares = optimizers::add_signs_and_measure(signs, scales, results.sum.data(), 203);
    optimizers::expand_signs(results.signs.data(), 3.0f, results.out.data(), 203);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  ASSERT_GE(all.size(), 2u);
  for (const Results& results : all) {
    EXPECT_EQ(results.signs, all[0].signs);
    EXPECT_EQ(results.out, all[0].out);
    EXPECT_EQ(results.sum, all[0].sum);
    EXPECT_THAT(results.error, Pointwise(Near(1e-7), all[0].error));  // targets without FMA round twice
    EXPECT_NEAR(results.squares, all[0].squares, 1e-5);
    EXPECT_NEAR(results.sum_squares, all[0].sum_squares, 1e-9 * all[0].sum_squares);
  }
  for (std::size_t i = 0; i < 203; ++i) {
    const bool positive = all[0].signs[i / 8] >> (7 - i % 8) & 1;
    EXPECT_EQ(all[0].out[i], positive ? 3.0f : -3.0f);
  }
}

}  // namespace
}  // namespace capstan::testing
