#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/capstan.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// y = A x, to be learnt; with a normalisation, whose running mean is a buffer.
struct RegressionImpl : torch::nn::Module {
  RegressionImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(3))),
        line(register_module("line", torch::nn::Linear(3, 2))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) { return torch::mse_loss(line(norm(x)), y); }
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear line;
};
TORCH_MODULE(Regression);

class Initialize : public ::testing::Test {
 protected:
  Initialize() { torch::manual_seed(1); }

  std::string config(const std::string& more = "") {
    const auto file = folder_ / "ds_config.json";
    write_bytes(file, R"({"train_batch_size": 16, "steps_per_print": null,
                          "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0}})" +
                          (more.empty() ? "" : ", " + more) + "}");
    return file.string();
  }

  Batch batch(const char* inputs = "input_ids", const char* targets = "labels") {
    const auto x = torch::randn({16, 3});
    Batch batch;
    batch.tensors = {{inputs, x}, {targets, torch::stack({x.sum(1), x.select(1, 0)}, 1)}};
    return batch;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(Initialize, TrainsAnOrdinaryModule) {
  const auto module = std::make_shared<RegressionImpl>();
  Engine engine = initialize(module, config());

  const double first = engine.train_batch([&] { return batch(); });
  for (int step = 0; step < 150; ++step) engine.train_batch([&] { return batch(); });

  EXPECT_GT(first, 1);
  EXPECT_LT(engine.mean_loss(), 0.3);  // what the noise of a batch's statistics leaves
  EXPECT_GT(module->norm->running_var.sub(1).abs().max().item<float>(), 0);
}

TEST_F(Initialize, TakesWhatBuildsAModule) {
  std::shared_ptr<RegressionImpl> built;
  Engine engine = initialize([&] { return built = std::make_shared<RegressionImpl>(); }, config());
  EXPECT_GT(engine.train_batch([&] { return batch(); }), 0);
  EXPECT_EQ(engine.model().parameters()[2].tensor.unsafeGetTensorImpl(), built->line->weight.unsafeGetTensorImpl());

  Engine stepped = initialize([] { return Regression(); },
                              [](RegressionImpl& net, const BatchView& batch) {
                                return net.forward(batch.tensor("input_ids"), batch.tensor("labels"));
                              },
                              config());
  EXPECT_GT(stepped.train_batch([&] { return batch(); }), 0);
}

TEST_F(Initialize, TakesAModuleHolderAndAStepFunction) {
  Regression module;
  Engine engine = initialize(
      module,
      [](RegressionImpl& regression, const BatchView& view) {
        return regression.forward(view.tensor("x"), view.tensor("y"));
      },
      config());
  const auto before = module->line->weight.detach().clone();

  engine.train_batch([&] { return batch("x", "y"); });

  EXPECT_FALSE(module->line->weight.equal(before));
}

TEST_F(Initialize, TakesAModuleHolderAlone) {
  Regression module;
  Engine engine = initialize(module, config());

  EXPECT_GT(engine.train_batch([&] { return batch(); }), 0);
}

TEST_F(Initialize, KeepsTheModuleAliveAndReleasesIt) {
  auto module = std::make_shared<RegressionImpl>();
  const std::weak_ptr<RegressionImpl> observed = module;
  {
    Engine engine = initialize(std::move(module), config());
    EXPECT_FALSE(observed.expired());
  }
  EXPECT_TRUE(observed.expired());
}

TEST_F(Initialize, TellsEveryProblemOfTheConfiguration) {
  const auto make = [&] {
    initialize(std::make_shared<RegressionImpl>(), config(R"("gradient_clippin": 1, "fp16": 3)"));
  };

  EXPECT_THAT(make, ThrowsMessage<ConfigError>(HasSubstr("gradient_clippin: unknown key. Did you mean "
                                                         "'gradient_clipping'?")));
  EXPECT_THAT(make, ThrowsMessage<ConfigError>(HasSubstr("fp16")));
}

TEST_F(Initialize, TakesFromTheProgramWhatTheFileLeavesToIt) {
  const std::string path = config(R"("gradient_clipping": "auto")");

  Engine engine = initialize(std::make_shared<RegressionImpl>(), path, {{"gradient_clipping", 0.25}});
  EXPECT_EQ(engine.config().gradient_clipping, 0.25);
  EXPECT_EQ(engine.config().origins.at("gradient_clipping"), "program");
}

TEST_F(Initialize, SaysThatTheConfigurationsModelIsNotUsed) {
  ::testing::internal::CaptureStderr();
  initialize(std::make_shared<RegressionImpl>(), config(R"("capstan": {"model": {"type": "mlp"}})"));

  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("capstan.model 'mlp' is not used: this program brings its own model, '"));
}

/// A buffer that takes part in the computation, and counts that do not.
struct Scaled : torch::nn::Module {
  Scaled()
      : line(register_module("line", torch::nn::Linear(3, 2))),
        scale(register_buffer("scale", torch::full({3}, 2.0))),
        calls(register_buffer("calls", torch::zeros({1}, torch::kLong))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    calls += 1;
    return torch::mse_loss(line(x.to(line->weight.dtype()) * scale).to(torch::kFloat), y);
  }
  torch::nn::Linear line;
  torch::Tensor scale, calls;
};

TEST_F(Initialize, CastsFloatingBuffersWhereConfigured) {
  const auto module = std::make_shared<Scaled>();
  Engine engine = initialize(module, config(R"("bf16": {"enabled": true}, "data_types": {"buffer_dtype": "bf16"})"));

  for (int step = 0; step < 100; ++step) engine.train_batch([&] { return batch(); });

  EXPECT_EQ(module->scale.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(module->calls.item<std::int64_t>(), 100);
  EXPECT_LT(engine.mean_loss(), 0.1);
}

TEST_F(Initialize, LeavesBuffersAsLoadedOtherwise) {
  const auto module = std::make_shared<Scaled>();
  Engine engine = initialize(module, config(R"("bf16": {"enabled": true})"));

  EXPECT_EQ(module->scale.scalar_type(), torch::kFloat);
  EXPECT_EQ(module->line->weight.scalar_type(), torch::kBFloat16);
}

TEST_F(Initialize, KeepsBuffersInFp32WhoseNamesTheConfigurationGives) {
  for (const char* pattern : {"scale", "s*le", "^scale$"}) {
    for (const char* precision : {"bf16", "fp16"}) {
      const auto module = std::make_shared<Scaled>();
      module->scale.set_data(module->scale.to(torch::kHalf));
      Engine engine = initialize(module, config("\"" + std::string(precision) +
                                                R"(": {"enabled": true}, "data_types": {"buffer_dtype": "bf16",
                                                       "keep_in_fp32_modules": [")" +
                                                pattern + R"("]})"));
      EXPECT_EQ(module->scale.scalar_type(), torch::kFloat) << pattern;
      EXPECT_NE(module->line->weight.scalar_type(), torch::kFloat);
    }
  }
}

TEST_F(Initialize, CastsBuffersThatNoPatternFitsAndNamesThePattern) {
  const auto module = std::make_shared<Scaled>();
  ::testing::internal::CaptureStderr();
  Engine engine = initialize(module, config(R"("bf16": {"enabled": true}, "data_types": {"buffer_dtype": "bf16",
                                                 "keep_in_fp32_modules": ["scalf", "^x.*y*$"]})"));

  EXPECT_EQ(module->scale.scalar_type(), torch::kBFloat16);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              HasSubstr("data_types.keep_in_fp32_modules: 'scalf' fits no buffer of the model. Did you mean 'scale'?"));
  EXPECT_THAT(said, HasSubstr("data_types.keep_in_fp32_modules: '^x.*y*$' fits no buffer of the model.\n"));
}

/// Says itself which of its buffers stay in fp32.
struct Telling : Scaled {
  explicit Telling(std::string told) : facts(std::move(told)) {}
  std::string describe() const { return facts; }
  std::string facts;
};

TEST_F(Initialize, KeepsBuffersInFp32ThatTheModelNames) {
  const auto module = std::make_shared<Telling>(R"({"fp32_buffers": {"bfloat16": ["scale"], "float16": []}})");
  Engine engine = initialize(module, config(R"("bf16": {"enabled": true}, "data_types": {"buffer_dtype": "bf16"})"));
  EXPECT_EQ(module->scale.scalar_type(), torch::kFloat);

  const auto wrong = [&] {
    initialize(std::make_shared<Telling>(R"({"fp32_buffers": ["scale"]})"), config(R"("bf16": {"enabled": true})"));
  };
  EXPECT_THAT(wrong, ThrowsMessage<PluginError>(
                         HasSubstr(", describe: fp32_buffers: must be an object with an array of names under "
                                   "\"bfloat16\", got [\"scale\"].")));
}

TEST_F(Initialize, TrainsADoublePrecisionModuleInFp32) {
  const auto module = std::make_shared<Scaled>();
  module->to(torch::kDouble);
  Engine engine = initialize(module, config());

  for (int step = 0; step < 100; ++step) engine.train_batch([&] { return batch(); });

  EXPECT_EQ(module->line->weight.scalar_type(), torch::kFloat);
  EXPECT_LT(engine.mean_loss(), 0.1);
}

struct Broken : torch::nn::Module {
  Broken() : weight(register_parameter("weight", torch::ones({1}))) {}
  torch::Tensor forward(const BatchView&) { throw std::domain_error("the model's own words"); }
  torch::Tensor weight;
};

TEST_F(Initialize, PassesOnWhatTheModuleThrows) {
  Engine engine = initialize(std::make_shared<Broken>(), config());

  EXPECT_THAT([&] { engine.train_batch([&] { return batch(); }); },
              ThrowsMessage<PluginError>(HasSubstr("Broken', forward: the model's own words")));
}

struct Detached : torch::nn::Module {
  Detached() : weight(register_parameter("weight", torch::ones({1}))) {}
  torch::Tensor forward(const BatchView&) { return weight.detach().sum(); }
  torch::Tensor weight;
};

TEST_F(Initialize, RefusesALossWithoutAGraph) {
  Engine engine = initialize(std::make_shared<Detached>(), config());

  EXPECT_THAT([&] { engine.train_batch([&] { return batch(); }); },
              ThrowsMessage<RuntimeFault>(HasSubstr("the loss depends on no trainable parameter")));
}

}  // namespace
}  // namespace capstan
