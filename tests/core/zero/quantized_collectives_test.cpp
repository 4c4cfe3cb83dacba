#include "core/zero/quantized_collectives.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

std::uint64_t sent_bytes(Communicator& communicator, const char* collective) {
  const auto traffic = communicator.log().traffic();
  const auto found = traffic.find(collective);
  return found == traffic.end() ? 0 : found->second.bytes;
}

/// What rank r has of piece i, the same wherever it is asked for.
at::Tensor values_of(int rank, std::int64_t i, std::int64_t numel) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * i + rank));
  return at::randn({numel});
}

/// Half a step, or a whole one where the largest was clipped: the step is the block's largest magnitude / 2^(bits-1).
double worst_error(const at::Tensor& values, double levels) { return values.abs().max().item<double>() / levels; }

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, GatherTheSameWeightsWithinTheBound) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      std::vector<std::vector<at::Tensor>> pieces;
      for (std::int64_t i = 0; i < 4; ++i) {
        std::vector<at::Tensor>& parts = pieces.emplace_back();
        for (int rank = 0; rank < communicator.size(); ++rank) {
          const std::int64_t numel = i == 3 ? 13 : 8 * ((rank + i) % 3) * 5000;  // uneven, some empty, some odd
          parts.push_back(rank == communicator.rank() ? values_of(rank, i, numel).to(dtype)
                                                      : at::zeros({numel}, dtype));
        }
      }
      const std::uint64_t before = sent_bytes(communicator, "all_gather");
      quantized_all_gather(communicator, "test", pieces);

      std::uint64_t expected_bytes = 0;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        for (int rank = 0; rank < communicator.size(); ++rank) {
          const at::Tensor& got = pieces[i][static_cast<std::size_t>(rank)];
          const std::int64_t n = got.numel();
          const at::Tensor original = values_of(rank, static_cast<std::int64_t>(i), n).to(dtype).to(at::kFloat);
          const bool quantized = n % 8 == 0;
          if (rank == communicator.rank()) {
            // One byte an element and four a block.
            expected_bytes += static_cast<std::uint64_t>(quantized ? (n == 0 ? 0 : n + 4 * (n / weight_format(n).block))
                                                                   : n * got.element_size());
          }
          if (!quantized || communicator.size() == 1) {
            EXPECT_TRUE(at::equal(got.to(at::kFloat), original));
            continue;
          }
          if (n == 0) continue;
          const double rounding = dtype == at::kBFloat16 ? 0.004 * original.abs().max().item<double>() : 1e-6;
          EXPECT_LE((got.to(at::kFloat) - original).abs().max().item<double>(), worst_error(original, 128) + rounding);
          EXPECT_FALSE(at::equal(got.to(at::kFloat), original));
        }
      }
      EXPECT_EQ(sent_bytes(communicator, "all_gather") - before,
                expected_bytes * static_cast<std::uint64_t>(communicator.size() - 1));
      // The same everywhere: a checksum of all values.
      std::string text;
      for (const auto& parts : pieces) {
        for (const at::Tensor& part : parts) {
          text += std::to_string(part.to(at::kDouble).sum().item<double>()) + " ";
        }
      }
      for (const std::string& other : communicator.all_gather_text("test, sums", text)) EXPECT_EQ(other, text);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Ranks, testing::Values(1, 2, 3, 4));

struct Nodes {
  int ranks, per_node;
};

void PrintTo(const Nodes& nodes, std::ostream* out) {
  *out << nodes.ranks << " ranks, " << nodes.per_node << " a node";
}

class NodeGroups : public testing::TestWithParam<Nodes> {};

/// Uneven parts, in ranges of both kinds.
std::vector<std::vector<GradientRange>> ranges_for(int ranks) {
  std::vector<std::vector<GradientRange>> ranges;
  for (int rank = 0; rank < ranks; ++rank) {
    ranges.push_back({{3000 + 64 * rank, 256}, {40, 0}, {1001, 96}});
    if (rank == 1) ranges.back() = {{77, 0}};  // nothing to quantise
  }
  return ranges;
}

std::vector<std::int64_t> numels_of(const std::vector<std::vector<GradientRange>>& ranges) {
  std::vector<std::int64_t> numels;
  for (const auto& of_rank : ranges) {
    numels.push_back(0);
    for (const GradientRange& range : of_rank) numels.back() += range.numel;
  }
  return numels;
}

/// Bytes of the codes and scales of one part: half a byte an element, four a block, in whole words.
std::int64_t part_bytes(const std::vector<GradientRange>& ranges) {
  std::int64_t blocks = 0, codes = 0;
  for (const GradientRange& range : ranges) {
    if (range.block == 0) continue;
    blocks += (range.numel + range.block - 1) / range.block;
    codes += (range.numel + 1) / 2;
  }
  return (4 * blocks + codes + 3) / 4 * 4;
}

TEST_P(NodeGroups, ReduceToTheSumWithinTheBound) {
  const int per_node = GetParam().per_node;
  test::expect_on_ranks(GetParam().ranks, [per_node](Communicator& communicator) {
    const int ranks = communicator.size(), own = communicator.rank();
    const auto ranges = ranges_for(ranks);
    const auto numels = numels_of(ranges);
    const auto mine = static_cast<std::size_t>(own);
    QuantizedReduceScatter reducer(shared(communicator), per_node, ranges);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(values_of(own, 10 + rank, numels[static_cast<std::size_t>(rank)]));
    }
    const at::Tensor got = reducer.reduce("test", parts);

    // Each of W quantisations of the first step is off by at most a whole step of a / 8, each of N of the second by one
    // of the sum in its node.
    at::Tensor exact = at::zeros({numels[mine]}, at::kDouble);
    double bound = 1e-5;
    for (int node = 0; node < ranks / per_node; ++node) {
      at::Tensor of_node = at::zeros({numels[mine]}, at::kDouble);
      double first = 0;
      for (int rank = node * per_node; rank < (node + 1) * per_node; ++rank) {
        const at::Tensor values = values_of(rank, 10 + own, numels[mine]).to(at::kDouble);
        of_node += values;
        first += worst_error(values, 8);
      }
      exact += of_node;
      bound += first + worst_error(of_node, 8) + first / 8;
    }
    ASSERT_EQ(got.numel(), exact.numel());
    EXPECT_LE((got.to(at::kDouble) - exact).abs().max().item<double>(), bound);
    std::int64_t at = 0;
    for (const GradientRange& range : ranges[mine]) {
      const double error = (got.to(at::kDouble) - exact).narrow(0, at, range.numel).abs().max().item<double>();
      if (range.block == 0) {
        EXPECT_LE(error, 1e-5) << "what is not quantised";
      } else {
        EXPECT_GT(error, 1e-4) << "was it quantised?";
      }
      at += range.numel;
    }

    // Within the node to each peer one part a node; between nodes one part a peer; the rest as it is.
    std::int64_t quantized = 0, rest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (rank % per_node != own % per_node) quantized += part_bytes(ranges[r]);
      if (rank % per_node == own % per_node && rank != own) quantized += part_bytes(ranges[r]);
      if (rank == own) continue;
      for (const GradientRange& range : ranges[r]) rest += range.block == 0 ? 4 * range.numel : 0;
    }
    EXPECT_EQ(sent_bytes(communicator, "all_to_all_single"), static_cast<std::uint64_t>(quantized));
    EXPECT_EQ(sent_bytes(communicator, "reduce_scatter"), static_cast<std::uint64_t>(rest));
  });
}

TEST_P(NodeGroups, FeedbackMakesGoodWhatWasLost) {
  const int per_node = GetParam().per_node;
  test::expect_on_ranks(GetParam().ranks, [per_node](Communicator& communicator) {
    const int ranks = communicator.size(), own = communicator.rank();
    const auto ranges = ranges_for(ranks);
    const auto numels = numels_of(ranges);
    const auto mine = static_cast<std::size_t>(own);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(values_of(own, 10 + rank, numels[static_cast<std::size_t>(rank)]));
    }
    at::Tensor exact = at::zeros({numels[mine]}, at::kDouble);
    for (int rank = 0; rank < ranks; ++rank) exact += values_of(rank, 10 + own, numels[mine]).to(at::kDouble);

    // The same gradients over and over: without feedback the error stays, with it the mean over calls loses it.
    const auto mean_error = [&](std::optional<ErrorFeedback> feedback) {
      QuantizedReduceScatter reducer(shared(communicator), per_node, ranges, feedback);
      constexpr int kCalls = 40;
      at::Tensor sum = at::zeros({numels[mine]}, at::kDouble);
      for (int call = 0; call < kCalls; ++call) sum += reducer.reduce("test", parts).to(at::kDouble);
      return (sum / kCalls - exact).abs().mean().item<double>();
    };
    const double plain = mean_error(std::nullopt), corrected = mean_error(ErrorFeedback{0.0, 1024});
    const bool quantized = plain > 1e-4;  // on this rank
    if (quantized) {
      EXPECT_LT(corrected, plain / 5);
    }

    // Forgotten at every second call, calls come in equal pairs.
    QuantizedReduceScatter forgetful(shared(communicator), per_node, ranges, ErrorFeedback{0.8, 2});
    const at::Tensor first = forgetful.reduce("test", parts), second = forgetful.reduce("test", parts);
    EXPECT_TRUE(at::equal(forgetful.reduce("test", parts), first));
    EXPECT_TRUE(at::equal(forgetful.reduce("test", parts), second));
    EXPECT_EQ(at::equal(first, second), !quantized);
    EXPECT_GT(forgetful.error_bytes(), 0);
  });
}

TEST_P(NodeGroups, AnOverflowAnywhereArrives) {
  const int per_node = GetParam().per_node;
  test::expect_on_ranks(GetParam().ranks, [per_node](Communicator& communicator) {
    const auto ranges = ranges_for(communicator.size());
    const auto numels = numels_of(ranges);
    QuantizedReduceScatter reducer(shared(communicator), per_node, ranges, ErrorFeedback{});
    std::vector<at::Tensor> parts;
    for (const std::int64_t numel : numels) parts.push_back(at::zeros({numel}));
    for (const bool overflow : {false, true, false}) {
      if (communicator.rank() == communicator.size() - 1) {
        for (at::Tensor& part : parts) part[5].fill_(overflow ? INFINITY : 1.0);
      }
      EXPECT_EQ(std::isfinite(reducer.reduce("test", parts).sum().item<float>()), !overflow);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, NodeGroups,
                         testing::Values(Nodes{2, 1}, Nodes{2, 2}, Nodes{3, 1}, Nodes{4, 1}, Nodes{4, 2}, Nodes{4, 4}));

}  // namespace
}  // namespace capstan
