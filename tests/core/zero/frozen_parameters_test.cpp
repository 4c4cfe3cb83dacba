// Frozen parameters, which stage 3 partitions as it does trained ones.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using test::MixedModel;

std::string config_of(int ranks, const std::string& zero, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null,
    "gradient_clipping": 1.0, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    "zero_optimization": )" +
         zero + more + "}";
}

constexpr const char* kRemote = R"({"stage": 3, "stage3_param_persistence_threshold": 0)";

/// A MixedModel of which half is frozen, in storages of their own and together with trained ones.
class FrozenRun {
 public:
  FrozenRun(Communicator& communicator, const std::string& config_json, bool deferred = false)
      : values_(deferred ? std::make_shared<DeferredValues>(1) : nullptr),
        model([&] {
          std::optional<DeferredValues::Scope> scope;
          if (values_) scope.emplace(*values_);
          MixedModel built(1);
          built.skips = false;
          const at::Tensor shared = at::randn({300});
          built.parameters.push_back({"shared.trained", shared.narrow(0, 0, 100).requires_grad_()});
          built.parameters.push_back({"shared.frozen", shared.narrow(0, 100, 200)});
          built.parameters.push_back({"numbers", at::arange(7)});
          for (NamedTensor& parameter : built.parameters) {
            const bool frozen =
                parameter.name == "large" || parameter.name == "transposed" || parameter.name == "more4";
            if (frozen) parameter.tensor.requires_grad_(false);
          }
          return built;
        }()),
        engine([&] {
          ConfigContext context;
          context.world_size = communicator.size();
          const Config config = load_config({config_json, "test", false}, context, plugins_);
          Model shown(
              &MixedModel::table(), &model, [](void*) {}, "mixed");
          shown.set_deferred(values_);
          return Engine(std::move(shown), config, plugins_, {&communicator, [](Communicator*) {}});
        }()) {}

  std::vector<double> steps(int count) {
    std::vector<double> losses;
    const std::int64_t rows = engine.config().batch.micro_batch_size;
    for (int i = 0; i < count; ++i) {
      const std::int64_t first = engine.progress().global_samples + engine.rank() * rows;
      losses.push_back(engine.train_batch([&] { return test::rows_of_stream(first, rows); }));
    }
    return losses;
  }
  at::Tensor values() {
    const GatherScope held = engine.gather();
    std::vector<at::Tensor> all;
    for (const NamedTensor& parameter : model.parameters) {
      all.push_back(parameter.tensor.detach().reshape({-1}).to(at::kFloat));
    }
    return at::cat(all);
  }
  const at::Tensor& tensor(const std::string& name) const {
    for (const NamedTensor& parameter : model.parameters) {
      if (parameter.name == name) return parameter.tensor;
    }
    throw std::logic_error("no parameter " + name);
  }

 private:
  PluginIndex plugins_;
  std::shared_ptr<DeferredValues> values_;

 public:
  MixedModel model;
  Engine engine;
};

class Frozen : public testing::TestWithParam<int> {};

TEST_P(Frozen, ParametersThatComeAndGoGiveTheSameBits) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* more : {"", R"(, "bf16": {"enabled": true})"}) {
      FrozenRun plain(communicator, config_of(communicator.size(), R"({"stage": 2})", more));
      const auto losses = plain.steps(3);
      const at::Tensor expected = plain.values();
      for (const std::string& zero :
           {std::string(R"({"stage": 3})"), std::string(kRemote) + "}",
            std::string(kRemote) + R"(, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0})",
            std::string(kRemote) + R"(, "zero_hpz_partition_size": )" + std::to_string(communicator.size()) + "}"}) {
        for (const bool deferred : {false, true}) {
          FrozenRun run(communicator, config_of(communicator.size(), zero, more), deferred);
          EXPECT_EQ(run.steps(3), losses) << zero << more;
          EXPECT_TRUE(at::equal(run.values(), expected)) << zero << more;
        }
      }
    }
  });
}

TEST_P(Frozen, ParametersAreAwayBetweenTheirUses) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    FrozenRun run(communicator, config_of(communicator.size(), std::string(kRemote) + "}"));
    run.steps(1);
    EXPECT_ANY_THROW(run.tensor("large").const_data_ptr());
    EXPECT_ANY_THROW(run.tensor("transposed").const_data_ptr());
    EXPECT_EQ(run.tensor("numbers").const_data_ptr<std::int64_t>()[6], 6);
    const GatherScope held = run.engine.gather({"large"});
    EXPECT_NE(run.tensor("large").const_data_ptr(), nullptr);
  });
}

TEST_P(Frozen, ParametersTakeTheValuesThatOneRankWrites) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    at::Tensor expected;
    for (const std::string& zero : {std::string(R"({"stage": 0})"), std::string(kRemote) + "}"}) {
      FrozenRun run(communicator, config_of(communicator.size(), zero));
      {
        const at::NoGradGuard no_grad;
        const GatherScope held = run.engine.gather({"large", "transposed"}, 1);
        for (const char* name : {"large", "transposed"}) at::Tensor(run.tensor(name)).fill_(communicator.rank());
      }
      run.steps(1);
      if (!expected.defined()) expected = run.values();
      EXPECT_TRUE(at::equal(run.values(), expected)) << zero;
      EXPECT_GE(expected.eq(1).sum().item<std::int64_t>(), run.tensor("large").numel());
    }
  });
}

TEST_P(Frozen, ParametersGoThroughACheckpointToAnyStage) {
  const TemporaryFolder folder;
  setenv("CAPSTAN_TEST_FOLDER", folder.path().c_str(), 0);
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string dir = std::getenv("CAPSTAN_TEST_FOLDER");
    const std::string stages[] = {R"({"stage": 1})", std::string(kRemote) + "}"};
    for (const std::string& from : stages) {
      FrozenRun saved(communicator, config_of(communicator.size(), from));
      {
        const at::NoGradGuard no_grad;
        const GatherScope held = saved.engine.gather({"large"}, 0);
        at::Tensor(saved.tensor("large")).mul_(2);
      }
      saved.steps(1);
      saved.engine.save_checkpoint(dir, "tag");
      for (const std::string& to : stages) {
        FrozenRun loaded(communicator, config_of(communicator.size(), to));
        loaded.engine.load_checkpoint(dir, "tag");
        EXPECT_TRUE(at::equal(loaded.values(), saved.values())) << from << " to " << to;
        saved.engine.load_checkpoint(dir, "tag");
        EXPECT_EQ(loaded.steps(1), saved.steps(1)) << from << " to " << to;
        saved.engine.load_checkpoint(dir, "tag");
      }
    }
  });
}

TEST_P(Frozen, ParametersKeptAsCodesAreOffByHalfAScaleAndStaySo) {
  const TemporaryFolder folder;
  setenv("CAPSTAN_TEST_FOLDER", folder.path().c_str(), 0);
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string zero =
        R"({"stage": 3, "stage3_param_persistence_threshold": 1000, "zero_quantized_nontrainable_weights": true})";
    const FrozenRun plain(communicator, config_of(communicator.size(), R"({"stage": 0})"));
    FrozenRun run(communicator, config_of(communicator.size(), zero));
    const auto large = [&] {
      const GatherScope held = run.engine.gather({"large"});
      return run.tensor("large").clone();
    };
    const at::Tensor first = large();
    // Scales are 2 a / 256 with a the largest magnitude of a block, here of all; the clip takes one scale at most.
    const double bound = plain.tensor("large").abs().max().item<double>() / 128;
    const double worst = (first - plain.tensor("large")).abs().max().item<double>();
    EXPECT_LE(worst, bound);
    EXPECT_GT(worst, bound / 100);
    // A small one stays as it is.
    EXPECT_TRUE(at::equal(run.tensor("frozen"), plain.tensor("frozen")));

    run.steps(2);
    EXPECT_TRUE(at::equal(large(), first));
    const std::string dir = std::getenv("CAPSTAN_TEST_FOLDER");
    run.engine.save_checkpoint(dir, "tag");
    FrozenRun whole(communicator, config_of(communicator.size(), R"({"stage": 0})"));
    whole.engine.load_checkpoint(dir, "tag");
    EXPECT_TRUE(at::equal(whole.tensor("large"), first));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Frozen, testing::Values(2, 3));

}  // namespace
}  // namespace capstan
