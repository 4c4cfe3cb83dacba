// Models whose parameters never stand whole on a rank.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/engine/progress_report.hpp"
#include "core/model/deferred_model.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedModel;
using test::MixedRun;

std::string config_of(int ranks, const std::string& zero, const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "zero_optimization": )" +
         zero + more + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

class BornPartitioned : public testing::TestWithParam<int> {};

TEST_P(BornPartitioned, AModelTrainsAsOneThatWasBuiltWhole) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* more : {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true})"}) {
      for (const char* zero : {R"({"stage": 0})", R"({"stage": 2})", R"({"stage": 3})",
                               R"({"stage": 3, "stage3_param_persistence_threshold": 0})"}) {
        const std::string config = config_of(communicator.size(), zero, more);
        const auto run = [&](const std::shared_ptr<DeferredValues>& deferred) {
          auto one = std::make_unique<MixedRun>(config, shared(communicator), 1, 100'000, std::vector<ModuleRecord>{},
                                                deferred);
          one->model.skips = false;
          return one;
        };
        const auto plain = run(nullptr);
        const auto born = run(std::make_shared<DeferredValues>(1));
        const at::Tensor next = at::randn({3});
        const MixedModel again(1);
        EXPECT_TRUE(at::equal(next, at::randn({3}))) << "the generator is not where plain construction leaves it";
        EXPECT_TRUE(at::equal(born->values(), plain->values())) << zero << more;
        EXPECT_EQ(born->steps(3), plain->steps(3)) << zero << more;
        EXPECT_TRUE(at::equal(born->values(), plain->values())) << zero << more;
      }
    }
  });
}

TEST_P(BornPartitioned, AModelHasTheValuesOfRankZero) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string config =
        config_of(communicator.size(), R"({"stage": 3, "stage3_param_persistence_threshold": 100})", "");
    PluginIndex plugins;
    ConfigContext context;
    context.world_size = communicator.size();
    const Config read = load_config({config, "test", false}, context, plugins);
    auto deferred = std::make_shared<DeferredValues>(1);
    MixedModel mixed(1);
    {
      const DeferredValues::Scope scope(*deferred);
      mixed = MixedModel(1);
      for (NamedTensor& parameter : mixed.parameters) {
        const at::NoGradGuard no_grad;
        parameter.tensor.fill_(communicator.rank() + 1);
      }
    }
    Model model(
        &MixedModel::table(), &mixed, [](void*) {}, "mixed");
    model.set_deferred(deferred);
    Engine engine(std::move(model), read, plugins, shared(communicator));
    const GatherScope held = engine.gather();
    for (const NamedTensor& parameter : mixed.parameters) {
      EXPECT_TRUE(parameter.tensor.eq(1).all().item<bool>()) << parameter.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BornPartitioned, testing::Values(2, 3));

std::int64_t peak_bytes() { return static_cast<std::int64_t>(host_memory().peak); }

TEST(BornPartitionedModel, NeedsTheMemoryOfItsPartsAndOfOneParameter) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  test::expect_on_ranks(2, [](Communicator& communicator) {
    constexpr int kMatrices = 12;
    constexpr std::int64_t kBytes = std::int64_t{16} << 20;  // bytes of each matrix
    PluginIndex plugins;
    ConfigContext context;
    context.world_size = 2;
    const Config config = load_config({config_of(2, R"({"stage": 3})", ""), "test", false}, context, plugins);
    std::ofstream("/proc/self/clear_refs") << "5";
    const std::int64_t before = peak_bytes();
    MixedModel wide(1);
    wide.parameters.clear();
    Model model = without_values([&] {
      for (int i = 0; i < kMatrices; ++i) {
        const at::Tensor matrix = at::empty({2048, 2048}).normal_(0, 0.02);
        wide.parameters.push_back({"matrix" + std::to_string(i), at::Tensor(matrix).requires_grad_()});
      }
      return Model(
          &MixedModel::table(), &wide, [](void*) {}, "wide");
    });
    const Engine engine(std::move(model), config, plugins, shared(communicator));
    // The parts of parameters, gradients and momentum take 288 MiB. The whole model and the parts would be 384 at once.
    const std::int64_t parts = 3 * kMatrices * kBytes / 2;
    EXPECT_LT(peak_bytes() - before, parts + kBytes + (std::int64_t{24} << 20));
    EXPECT_GT(peak_bytes() - before, parts);
  });
}

TEST(ModelWithoutValues, IsBuiltAgainWhereItsCodeTakesMemory) {
  at::manual_seed(1);
  const at::Tensor expected = at::randn({40'000});
  at::manual_seed(1);
  MixedModel mixed(1);
  at::manual_seed(1);
  int calls = 0;
  testing::internal::CaptureStderr();
  const Model model = without_values([&] {
    ++calls;
    mixed.parameters = {{"raw", at::randn({40'000})}};
    mixed.parameters[0].tensor.mutable_data_ptr<float>()[0] = 5;
    return Model(
        &MixedModel::table(), &mixed, [](void*) {}, "raw");
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("so it is built whole on each rank"));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(model.deferred(), nullptr);
  EXPECT_EQ(mixed.parameters[0].tensor[0].item<float>(), 5);
  EXPECT_TRUE(at::equal(mixed.parameters[0].tensor.slice(0, 1), expected.slice(0, 1)));
}

TEST(ModelWithoutValues, PassesOtherErrorsOn) {
  EXPECT_THROW(without_values([]() -> Model { throw std::invalid_argument("no such size"); }), std::invalid_argument);
}

}  // namespace
}  // namespace capstan
