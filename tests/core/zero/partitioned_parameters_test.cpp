// Parameters that ranks hold in parts, gathered, against the whole parameters that every rank knows.

#include "core/zero/partitioned_parameters.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/core/zero/fakes.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::expect_on_ranks;

// Empty, one element, less than a vector, more than a block of the partition, a whole number of blocks.
const std::vector<std::int64_t> kSizes = {0, 1, 17, Partition::kBlock + 5, 2 * Partition::kBlock, 100};

Partition partition_over(int ranks) {
  std::vector<Partition::Parameter> parameters;
  for (const std::int64_t numel : kSizes) parameters.push_back({numel});
  return Partition(parameters, /*bucket_elements=*/40'000, ranks);
}

/// Values that tell the version, the parameter and the place of an element; exact in the dtypes that are tried.
at::Tensor whole(std::size_t i, int version, at::ScalarType dtype) {
  return (at::arange(kSizes[i]) % 100 + static_cast<std::int64_t>(i) * 8 + version).to(dtype);
}

ParameterSource::Request request(std::size_t i, at::ScalarType dtype) {
  return {i, at::full({kSizes[i]}, -1).to(dtype)};
}

void expect_whole(const ParameterSource::Request& found, int version, const char* where) {
  EXPECT_TRUE(at::equal(found.values, whole(found.parameter, version, found.values.scalar_type())))
      << where << ", parameter " << found.parameter << ", version " << version;
}

/// Fetches of random parameters, several under way at once, waited for in any order.
void expect_fetches(PartGatherer& gatherer, int version, at::ScalarType dtype, const char* where) {
  std::mt19937 random(static_cast<unsigned>(version));  // the same on all ranks
  for (int round = 0; round < 4; ++round) {
    std::vector<std::pair<ParameterSource::Ticket, std::vector<ParameterSource::Request>>> fetches;
    for (int fetch = 0; fetch < 3; ++fetch) {
      std::vector<ParameterSource::Request> requests;
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        if (random() % 2) requests.push_back(request(i, dtype));
      }
      fetches.emplace_back(gatherer.fetch("some", requests), requests);
    }
    if (round % 2) std::reverse(fetches.begin(), fetches.end());
    for (const auto& [ticket, requests] : fetches) {
      gatherer.wait(ticket);
      for (const auto& one : requests) expect_whole(one, version, where);
    }
  }
}

struct Setting {
  const char* name;
  at::ScalarType dtype = at::kFloat;
  bool threaded = true, stored = false;
  int secondary_ranks = 1;
};

const Setting kSettings[] = {
    {"in memory"},
    {"without a thread", at::kFloat, false},
    {"bfloat16", at::kBFloat16},
    {"every other one on a store", at::kFloat, true, true},
    {"second copies over two ranks", at::kFloat, true, false, 2},
    {"second copies of stored parts", at::kFloat, true, true, 2},
};

TEST(PartitionedParameters, GiveTheWholeOfWhatTheRanksTook) {
  expect_on_ranks(4, [](Communicator& communicator) {
    const Partition partition = partition_over(communicator.size());
    for (const Setting& setting : kSettings) {
      test::LateStore store;
      PartitionedParameters::Places places;
      if (setting.stored) {
        places.store = &store;
        for (std::size_t i = 0; i < kSizes.size(); ++i) places.stored.push_back(i % 2 != 0);
      }
      PartitionedParameters parameters(partition, communicator.rank(), setting.dtype, std::move(places));
      WorkQueue queue(setting.threaded);
      PartGatherer gatherer(communicator, queue, parameters, {false, setting.secondary_ranks});
      for (int version = 0; version < 3; ++version) {
        for (std::size_t i = 0; i < kSizes.size(); ++i) parameters.take(i, whole(i, version, setting.dtype));
        gatherer.forget();
        expect_fetches(gatherer, version, setting.dtype, setting.name);
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          const Range range = partition.part(i, communicator.rank());
          EXPECT_TRUE(
              at::equal(parameters.part(i), whole(i, version, setting.dtype).narrow(0, range.offset, range.numel)))
              << setting.name << ", parameter " << i;
        }
      }
      queue.drain();
      EXPECT_EQ(store.under_way(), 0U) << setting.name;
    }
  });
}

/// Second copies are the values of the last forget(): they are what makes a later gather cheap.
TEST(PartitionedParameters, KeepSecondCopiesUntilTheyAreForgotten) {
  expect_on_ranks(4, [](Communicator& communicator) {
    const Partition partition = partition_over(communicator.size());
    PartitionedParameters parameters(partition, communicator.rank(), at::kFloat, {});
    WorkQueue queue(true);
    PartGatherer gatherer(communicator, queue, parameters, {false, /*secondary_ranks=*/2});
    const auto fetched = [&](std::size_t i) {
      const ParameterSource::Request one = request(i, at::kFloat);
      gatherer.wait(gatherer.fetch("one", {one}));
      return one;
    };
    for (std::size_t i = 0; i < kSizes.size(); ++i) parameters.take(i, whole(i, 0, at::kFloat));
    for (std::size_t i = 0; i < kSizes.size(); ++i) expect_whole(fetched(i), 0, "first");
    for (std::size_t i = 0; i < kSizes.size(); ++i) parameters.take(i, whole(i, 1, at::kFloat));
    for (std::size_t i = 0; i < kSizes.size(); ++i) expect_whole(fetched(i), 0, "not forgotten");
    gatherer.forget();
    for (std::size_t i = 0; i < kSizes.size(); ++i) expect_whole(fetched(i), 1, "forgotten");
  });
}

}  // namespace
}  // namespace capstan
