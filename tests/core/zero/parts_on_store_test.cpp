// Parts of parameters, and gradients, that are kept outside memory: against those that are kept in memory.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>

#include "core/errors.hpp"
#include "core/zero/sharding.hpp"
#include "tests/core/zero/fakes.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::CopyStore;
using test::LateStore;

/// On one rank by itself, or on several.
void on_ranks(int ranks, const std::function<void(const std::shared_ptr<Communicator>&)>& body) {
  if (ranks == 1) return body(Communicator::alone());
  test::expect_on_ranks(ranks, [&](Communicator& communicator) { body({&communicator, [](Communicator*) {}}); });
}

/// Tiny, larger than a block, empty, not contiguous; the last one gets no gradient.
std::vector<at::Tensor> some_parameters(at::ScalarType type) {
  at::manual_seed(3);
  std::vector<at::Tensor> parameters;
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{7}, {300, 250}, {0, 3}, {40, 30}, {90'001}, {}, {500}}) {
    parameters.push_back(at::randn(sizes).to(type));
  }
  parameters[3] = parameters[3].t();
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

/// Every other one, the empty one among them.
std::vector<bool> every_other(std::size_t count, std::size_t first) {
  std::vector<bool> stored(count);
  for (std::size_t i = first; i < count; i += 2) stored[i] = true;
  return stored;
}

struct Setting {
  int stage = 3;
  bool overlap = false, quantized = false;
  int secondary_ranks = 1;
  at::ScalarType type = at::kFloat, accumulation = at::kFloat;
  std::int64_t bucket = 50'000;
};

/// A sharding, and what it needs to live.
struct Sharded {
  Sharded(const std::shared_ptr<Communicator>& ranks, const Setting& setting, StoredValues stored_values,
          const std::vector<bool>& movable = std::vector<bool>(7))
      : parameters(some_parameters(setting.type)) {
    ShardingOptions options;
    options.communicator = ranks;
    options.reduce_bucket_size = setting.bucket;
    options.overlap = setting.overlap;
    options.parts = {setting.quantized, setting.secondary_ranks};
    options.gradients.stage = setting.stage;
    options.gradients.accumulation = setting.accumulation;
    options.gradients.communication = setting.type;
    options.gradients.scale_after_sum = 1.0 / ranks->size();
    std::vector<std::int64_t> numels;
    for (const at::Tensor& parameter : parameters) numels.push_back(parameter.numel());
    std::vector<std::string> names(parameters.size(), "p");
    sharding.emplace(options, numels, numels);
    sharding->attach(parameters, names, movable, std::move(stored_values));
    if (setting.stage < 3) return;
    frozen = some_parameters(setting.type);
    sharding->attach_frozen(frozen, setting.type, {}, movable);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::NoGradGuard no_grad;
      sharding->take(i, parameters[i]);
      sharding->frozen().take(i, frozen[i].detach() + 1);
    }
  }

  ParameterSource::Ticket fetch(const std::vector<std::size_t>& which) {
    std::vector<ParameterSource::Request> requests;
    wholes.clear();
    for (const std::size_t i : which) {
      wholes.push_back(at::empty({parameters[i % parameters.size()].numel()}, parameters.front().scalar_type()));
      requests.push_back({i, wholes.back()});
    }
    return sharding->gatherer().fetch("some", requests);
  }
  std::vector<at::Tensor> fetched(const std::vector<std::size_t>& which) {
    sharding->gatherer().wait(fetch(which));
    return wholes;
  }
  /// One backward; `round` changes what the gradients are.
  void backward(int round, int last_round, bool with_fourth = true) {
    sharding->gradients().begin("step 0", round == last_round);
    at::Tensor sum = (parameters[0] * (round + 1.25)).sum();
    for (std::size_t i = 1; i + 1 < parameters.size(); ++i) {
      if (i == 4 && !with_fourth) continue;
      sum = sum + (parameters[i] * parameters[i] * (1 + 0.3 * round + sharding->communicator().rank())).sum();
    }
    torch::autograd::backward({sum}, {});
    sharding->gradients().end();
  }

  std::vector<at::Tensor> parameters, frozen, wholes;
  std::optional<Sharding> sharding;
};

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(at::equal(found[k], expected[k])) << k;
}

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class PartsAway : public testing::TestWithParam<int> {};

TEST_P(PartsAway, MakeTheWholesThatPartsInMemoryMake) {
  on_ranks(GetParam(), [](const std::shared_ptr<Communicator>& ranks) {
    const int near = ranks->size() % 2 == 0 ? 2 : 1;
    for (const Setting& setting : {Setting{}, Setting{.overlap = true}, Setting{.type = at::kBFloat16},
                                   Setting{.overlap = true, .secondary_ranks = near}, Setting{.quantized = true}}) {
      LateStore store;
      Sharded stored(ranks, setting, {.parts = &store, .trained = every_other(7, 0), .frozen = every_other(7, 1)});
      Sharded here(ranks, setting, {});
      const std::vector<std::vector<std::size_t>> groups = {{0, 1, 4}, {8, 3, 10}, {2, 5, 6, 7, 9, 11, 13}, {4, 8}};
      for (int round = 0; round < 2; ++round) {
        for (const auto& group : groups) expect_equal(stored.fetched(group), here.fetched(group));
      }
      for (std::size_t i = 0; i < 7; ++i) {
        EXPECT_TRUE(at::equal(stored.sharding->frozen().part(i), here.sharding->frozen().part(i)));
        EXPECT_EQ(stored.sharding->updated_values(i).defined(), i % 2 == 1);
      }
      EXPECT_EQ(store.under_way(), 0);
      // Second copies are near: 4 is asked for four times and read once until it changes.
      const auto reads = std::count(store.started.begin(), store.started.end(), 4);
      if (setting.secondary_ranks > 1) {
        EXPECT_LE(reads, 1);
      }
      for (Sharded* one : {&stored, &here}) {
        const at::NoGradGuard no_grad;
        one->sharding->take(4, one->parameters[4].detach() * 2);
        one->sharding->gatherer().forget();
      }
      expect_equal(stored.fetched({4}), here.fetched({4}));
    }
  });
}

TEST_P(PartsAway, LeaveGradientsAndTheirSquaresTheSameBits) {
  on_ranks(GetParam(), [](const std::shared_ptr<Communicator>& ranks) {
    for (const Setting& setting :
         {Setting{}, Setting{.overlap = true, .bucket = 1}, Setting{.stage = 2, .accumulation = at::kBFloat16},
          Setting{.type = at::kBFloat16}, Setting{.type = at::kHalf, .accumulation = at::kHalf, .bucket = 1'000'000}}) {
      LateStore store;
      CopyStore gradients;
      const std::vector<bool> stored = every_other(7, 0);
      Sharded sunk(ranks, setting, {.parts = &store, .gradients = &gradients, .trained = stored, .frozen = {}});
      Sharded here(ranks, setting, {});
      for (int rounds : {1, 3, 1}) {
        for (Sharded* one : {&sunk, &here}) {
          for (int round = 0; round < rounds; ++round) one->backward(round, rounds - 1, /*with_fourth=*/round == 0);
        }
        for (const bool norm : {true, false}) {
          const StepAgreement found = sunk.sharding->exchange("step 0", {1.5}, norm);
          const StepAgreement expected = here.sharding->exchange("step 0", {1.5}, norm);
          EXPECT_EQ(found.squares.exact, expected.squares.exact);
          EXPECT_EQ(found.squares.rounded, expected.squares.rounded);
          EXPECT_EQ(found.present, expected.present);
          EXPECT_GT(expected.squares.exact, 0);
        }
        for (std::size_t i = 0; i + 1 < 7; ++i) {
          const at::Tensor expected = here.sharding->gradients().gradient(i);
          at::Tensor found = sunk.sharding->gradients().gradient(i);
          EXPECT_EQ(found.defined(), !stored[i]);
          if (stored[i]) found = at::empty_like(expected);
          if (stored[i] && found.numel() > 0) gradients.read(i, found);
          EXPECT_TRUE(at::equal(found, expected)) << i << " after " << rounds;
        }
        for (Sharded* one : {&sunk, &here}) one->sharding->gradients().drop();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PartsAway, testing::Values(1, 2, 3));

TEST(OneProcess, ReadsAheadWithoutAThreadAndInAnyOrder) {
  LateStore store;
  Sharded run(Communicator::alone(), {},
              {.parts = &store, .gradients = nullptr, .trained = every_other(7, 0), .frozen = {}});
  const auto first = run.fetch({0});
  const std::vector<at::Tensor> of_first = run.wholes;
  const auto second = run.fetch({4, 6});
  EXPECT_THAT(store.started, testing::ElementsAre(0, 4, 6));
  EXPECT_EQ(store.under_way(), 3);
  run.sharding->gatherer().wait(second);
  EXPECT_TRUE(at::equal(run.wholes[0], run.parameters[4]));
  EXPECT_EQ(store.under_way(), 1);
  run.sharding->gatherer().wait(first);
  EXPECT_TRUE(at::equal(of_first[0], run.parameters[0]));
  run.sharding->gatherer().wait(first);  // for as often as it is asked
}

TEST(OneProcess, SaysOfAFailedReadWhenItIsAskedAndAgain) {
  LateStore store;
  Sharded run(Communicator::alone(), {},
              {.parts = &store, .gradients = nullptr, .trained = every_other(7, 0), .frozen = {}});
  store.fails = 4;
  const auto before = run.fetch({0}), failed = run.fetch({4, 6}), after = run.fetch({6});
  const auto wait = [&](ParameterSource::Ticket ticket) {
    return thrown_by([&] { run.sharding->gatherer().wait(ticket); });
  };
  EXPECT_EQ(wait(failed), "part 4 cannot be read");
  EXPECT_EQ(store.under_way(), 2);  // 6 of the same fetch was waited for
  EXPECT_EQ(wait(failed), "part 4 cannot be read");
  EXPECT_EQ(wait(after), "nothing was thrown");
  EXPECT_EQ(wait(before), "nothing was thrown");
  store.fails = LateStore::kNone;
  EXPECT_EQ(wait(run.fetch({4})), "nothing was thrown");
  EXPECT_EQ(wait(failed), "part 4 cannot be read");
}

TEST(OneProcess, HasTheGradientsOfTheNextStepAfterOneThatFailed) {
  LateStore store;
  CopyStore gradients;
  Sharded sunk(Communicator::alone(), {},
               {.parts = &store, .gradients = &gradients, .trained = every_other(7, 0), .frozen = {}});
  Sharded here(Communicator::alone(), {}, {});
  sunk.backward(0, 1);
  gradients.fails = 4;
  EXPECT_EQ(thrown_by([&] { sunk.backward(1, 1); }), "gradient 4 cannot be kept");
  gradients.fails = LateStore::kNone;
  sunk.sharding->gradients().drop();
  for (Sharded* one : {&sunk, &here}) one->backward(1, 1);
  EXPECT_EQ(sunk.sharding->exchange("step 1", {}, true).squares.rounded,
            here.sharding->exchange("step 1", {}, true).squares.rounded);
  at::Tensor found = at::empty_like(here.sharding->gradients().gradient(4));
  gradients.read(4, found);
  EXPECT_TRUE(at::equal(found, here.sharding->gradients().gradient(4)));
}

TEST(OneProcess, SendsNoGradientThatThereIsNot) {
  LateStore store;
  CopyStore gradients;
  Sharded run(Communicator::alone(), {},
              {.parts = &store, .gradients = &gradients, .trained = every_other(7, 0), .frozen = {}});
  for (int round = 0; round < 2; ++round) run.backward(round, 1, /*with_fourth=*/round == 0);
  EXPECT_TRUE(gradients.has(4));
  EXPECT_FALSE(gradients.has(6));
  EXPECT_EQ(gradients.reads, 1);  // for the squares of a gradient that the last micro-batch did not touch
}

TEST(OneProcess, LeavesNothingUnderWayWhenAReadCannotBegin) {
  LateStore store;
  Sharded run(Communicator::alone(), {},
              {.parts = &store, .gradients = nullptr, .trained = every_other(7, 0), .frozen = {}});
  store.refuses = 6;
  EXPECT_EQ(thrown_by([&] { run.fetch({0, 4, 6}); }), "no room for another read");
  EXPECT_EQ(store.under_way(), 0);
}

TEST(OneProcess, HasWhatStaysOnce) {
  const std::vector<bool> movable = {true, true, false, false, true, true, true};
  LateStore store;
  Sharded run(Communicator::alone(), {},
              {.parts = &store, .gradients = nullptr, .trained = every_other(7, 4), .frozen = {}}, movable);
  for (const std::size_t i : {0, 1, 5}) {
    EXPECT_TRUE(run.sharding->in_place(i));
    EXPECT_EQ(run.sharding->updated_values(i).const_data_ptr(), run.parameters[i].const_data_ptr()) << i;
    EXPECT_EQ(run.sharding->updated_values(i).dim(), 1);
    EXPECT_EQ(run.sharding->frozen().part(i).const_data_ptr(), run.frozen[i].const_data_ptr()) << i;
  }
  EXPECT_FALSE(run.sharding->in_place(4));
  EXPECT_NE(run.sharding->updated_values(3).const_data_ptr(), run.parameters[3].const_data_ptr());
}

TEST(SeveralProcesses, ReadWhileTheQueueIsBusyAndNothingComesAfterAFailure) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    LateStore store;
    const Partition partition({{70'000}, {70'000}}, 1, 2);
    PartitionedParameters parts(partition, communicator.rank(), at::kFloat,
                                {.coded = {}, .in_place = {}, .store = &store, .stored = {true, true}});
    const at::Tensor values = at::randn({70'000});
    for (const std::size_t i : {0, 1}) parts.take(i, values);
    std::vector<at::Tensor> wholes;
    for (int i = 0; i < 3; ++i) wholes.push_back(at::empty({70'000}));
    WorkQueue queue(/*threaded=*/true);
    PartGatherer gatherer(communicator, queue, parts, {});
    std::mutex mutex;
    mutex.lock();
    queue.submit([&] { const std::lock_guard lock(mutex); });
    store.fails = 1;
    const auto first = gatherer.fetch("0", {{0, wholes[0]}});
    const auto second = gatherer.fetch("1", {{1, wholes[1]}});
    const auto third = gatherer.fetch("0 again", {{0, wholes[2]}});
    EXPECT_THAT(store.started, testing::ElementsAre(0, 1, 0));
    EXPECT_EQ(store.under_way(), 3);
    mutex.unlock();
    const auto wait = [&](ParameterSource::Ticket ticket) { return thrown_by([&] { gatherer.wait(ticket); }); };
    EXPECT_EQ(wait(first), "nothing was thrown");
    EXPECT_EQ(wait(third), "part 1 cannot be read");  // dropped, and its read waited for
    EXPECT_EQ(store.under_way(), 0);
    EXPECT_EQ(wait(second), "part 1 cannot be read");
    EXPECT_EQ(thrown_by([&] { queue.drain(); }), "part 1 cannot be read");
    store.fails = LateStore::kNone;
    EXPECT_EQ(wait(gatherer.fetch("1", {{1, wholes[1]}})), "nothing was thrown");
    EXPECT_EQ(wait(second), "part 1 cannot be read");
    communicator.all_gather_text("test: end", "");
  });
}

}  // namespace
}  // namespace capstan
