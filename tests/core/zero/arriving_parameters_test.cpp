#include "core/zero/arriving_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;

std::string config_of(int stage, bool overlap, const char* more = "") {
  return R"({"train_micro_batch_size_per_gpu": 6, "steps_per_print": null, "gradient_clipping": 0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"reduce_bucket_size": 3000, "stage": )" +
         std::to_string(stage) + R"(, "overlap_comm": )" + (overlap ? "true" : "false") + "}" + more + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

const at::Tensor& parameter_of(const MixedRun& run, const std::string& name) {
  for (const NamedTensor& parameter : run.model.parameters) {
    if (parameter.name == name) return parameter.tensor;
  }
  throw std::out_of_range(name);
}

class ArrivingParameters : public testing::TestWithParam<int> {};

TEST_P(ArrivingParameters, CannotBeReadBeforeTheyAreHere) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(GetParam(), true), shared(communicator));
    const at::Tensor large = parameter_of(run, "large");
    EXPECT_NE(large.const_data_ptr(), nullptr);  // as long as nothing was updated
    run.step();
    EXPECT_THAT([&] { (void)large.const_data_ptr(); },
                testing::ThrowsMessage<c10::Error>(HasSubstr("parameter 'large' are still coming")));
    EXPECT_THAT([&] { (void)large.detach().sum(); },
                testing::ThrowsMessage<c10::Error>(HasSubstr("capstan::Engine::gather")));
    const GatherScope held = run.engine.gather();
    EXPECT_NE(large.const_data_ptr(), nullptr);
  });
}

TEST_P(ArrivingParameters, AreThoseOfARunThatWaits) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    for (const char* more : {"", R"(, "bf16": {"enabled": true})", R"(, "gradient_accumulation_steps": 2)"}) {
      MixedRun waits(config_of(GetParam(), false, more), shared(communicator));
      const auto losses = waits.steps(5);
      std::optional<MixedRun> overlaps(std::in_place, config_of(GetParam(), true, more), shared(communicator));
      EXPECT_EQ(overlaps->steps(5), losses) << more;
      EXPECT_EQ(overlaps->engine.eval_batch([] { return test::rows_of_stream(0, 6); }, 2),
                waits.engine.eval_batch([] { return test::rows_of_stream(0, 6); }, 2));
      EXPECT_TRUE(at::equal(overlaps->values(), waits.values())) << more;
    }
  });
}

TEST_P(ArrivingParameters, AreHereWhenTheEngineIsGone) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun waits(config_of(GetParam(), false), shared(communicator));
    waits.steps(2);
    at::Tensor large;
    {
      MixedRun overlaps(config_of(GetParam(), true), shared(communicator));
      overlaps.steps(2);
      large = parameter_of(overlaps, "large");
    }
    EXPECT_TRUE(at::equal(large, parameter_of(waits, "large")));
  });
}

/// Every call brings a few elements only, so that hundreds are under way when step() returns.
std::string config_of_many_calls(int stage, bool overlap) {
  std::string config = config_of(stage, overlap);
  return config.insert(config.find("\"reduce_bucket_size\""), "\"allgather_bucket_size\": 200, ");
}

TEST_P(ArrivingParameters, AreHereWhenTheEngineIsGoneInHoweverManyCallsTheyCome) {
  for (const bool thrown : {false, true}) {
    test::expect_on_ranks(2, [thrown](Communicator& communicator) {
      MixedRun waits(config_of(GetParam(), false), shared(communicator));
      waits.step();
      std::vector<NamedTensor> kept;
      try {
        MixedRun overlaps(config_of_many_calls(GetParam(), true), shared(communicator));
        kept = overlaps.model.parameters;
        overlaps.step();
        if (thrown) throw std::out_of_range("the data has ended");
      } catch (const std::out_of_range&) {
      }
      for (const NamedTensor& parameter : kept) {
        EXPECT_TRUE(at::equal(parameter.tensor, parameter_of(waits, parameter.name))) << parameter.name;
      }
    });
  }
}

TEST_P(ArrivingParameters, OfALostRankDoNotKeepAnEngineThatEndsByAnException) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of_many_calls(GetParam(), true), shared(communicator));
    run.step();
    if (communicator.rank() == 1) std::_Exit(7);
    throw std::out_of_range("the data has ended");
  });
  EXPECT_EQ(results[1].exit_code, 7);
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_EQ(results[0].err, "the data has ended\n");
}

TEST_P(ArrivingParameters, AreSavedWholeRightAfterAStep) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    if (communicator.rank() == 0) folder.emplace();
    const std::string dir = communicator.all_gather_text("test: folder", folder ? folder->path().string() : "")[0];
    MixedRun run(config_of(GetParam(), true), shared(communicator));
    run.steps(2);
    run.engine.save_checkpoint(dir, "two");
    MixedRun loaded(config_of(GetParam(), true), shared(communicator));
    loaded.engine.load_checkpoint(dir, "two");
    const auto losses = loaded.steps(2);
    const at::Tensor values = loaded.values();
    EXPECT_EQ(run.steps(2), losses);
    EXPECT_TRUE(at::equal(run.values(), values));
    communicator.all_gather_text("test: end", "");
  });
}

TEST_P(ArrivingParameters, OfALostRankEndTheOthersWithASentence) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(GetParam(), true), shared(communicator));
    run.steps(2);
    if (communicator.rank() == 1) std::_Exit(7);
    run.step();
  });
  EXPECT_EQ(results[1].exit_code, 7);
  EXPECT_NE(results[0].exit_code, 0);
  EXPECT_THAT(results[0].err, testing::ContainsRegex("rank 0: collective 'step [12], .*' failed: "));
}

TEST(LostGathers, LeaveParametersAwayUntilTheNextOneBringsThem) {
  const std::vector<at::Tensor> parameters = {at::randn({70}), at::randn({5, 4})};
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : parameters) values.push_back(parameter.clone());
  const Partition partition({{70, false}, {20, false}}, 40, 1);
  const FlatParameters flat(partition, parameters, {true, true}, {});
  const auto ranks = Communicator::alone();
  WorkQueue queue(/*threaded=*/true);
  capstan::ArrivingParameters arriving(parameters, {"a", "b"}, flat, *ranks, queue);

  queue.submit([] { throw std::runtime_error("rank 1 is gone"); });
  arriving.start("step 1");
  EXPECT_THAT([&] { queue.drain(); }, testing::ThrowsMessage<std::runtime_error>("rank 1 is gone"));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT([&] { arriving.settle(); }, testing::ThrowsMessage<std::runtime_error>("rank 1 is gone"));
    EXPECT_THAT([&] { (void)parameters[0].const_data_ptr(); },
                testing::ThrowsMessage<c10::Error>(HasSubstr("parameter 'a' are still coming")));
  }
  arriving.start("step 2");
  arriving.settle();
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i], values[i]));
}

INSTANTIATE_TEST_SUITE_P(Stages, ArrivingParameters, testing::Values(1, 2));

}  // namespace
}  // namespace capstan
