// Batch normalisation in 16 bits, whose running statistics must have the type of its weight.

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "capstan/capstan.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

/// A convolution and a line with a normalisation behind each, and a buffer like RoPE's tables.
struct NormalisedImpl : torch::nn::Module {
  NormalisedImpl()
      : convolution(register_module("convolution", torch::nn::Conv1d(torch::nn::Conv1dOptions(2, 3, 3).padding(1)))),
        channels(register_module("channels", torch::nn::BatchNorm1d(3))),
        instances(register_module(
            "instances",
            torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true)))),
        line(register_module("line", torch::nn::Linear(3, 4))),
        features(register_module("features", torch::nn::BatchNorm1d(4))),
        head(register_module("head", torch::nn::Linear(4, 1))),
        angles(register_buffer("angles", torch::rand({8}).div(3))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    const auto turned = (x * angles.cos()).to(line->weight.dtype());
    const auto mixed = instances(channels(convolution(turned))).relu().mean(2);
    const auto out = head(features(line(mixed).relu())).squeeze(1);
    return torch::mse_loss(out.to(torch::kFloat), y);
  }

  torch::nn::Conv1d convolution;
  torch::nn::BatchNorm1d channels;
  torch::nn::InstanceNorm1d instances;
  torch::nn::Linear line;
  torch::nn::BatchNorm1d features;
  torch::nn::Linear head;
  torch::Tensor angles;
};
TORCH_MODULE(Normalised);

Batch batch_number(std::uint64_t number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(number);
  Batch batch;
  const auto x = torch::randn({16, 2, 8}, generator);
  batch.tensors = {{"input_ids", x}, {"labels", x.select(1, 0).mean(1) * 3}};
  return batch;
}

double loss_of(NormalisedImpl& module, const Batch& batch) {
  return module.forward(batch.tensors.at("input_ids"), batch.tensors.at("labels")).item<double>();
}

std::shared_ptr<NormalisedImpl> made() {
  torch::manual_seed(5);
  return std::make_shared<NormalisedImpl>();
}

struct Sixteen {
  const char* section;
  torch::ScalarType type;
};

class BatchNorm : public ::testing::TestWithParam<Sixteen> {
 protected:
  std::string config(const std::string& more = "") {
    const auto file = folder_ / "ds_config.json";
    write_bytes(file, R"({"train_batch_size": 16, "steps_per_print": null,
                          "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0}}, )" +
                          std::string(GetParam().section) + more + "}");
    return file.string();
  }

  TemporaryFolder folder_;
};

TEST_P(BatchNorm, GivesTheLossAndStatisticsOfTorchsOwn16BitModule) {
  const auto plain = made(), module = made();
  const auto angles = plain->angles.clone();
  plain->to(GetParam().type);
  plain->angles.set_data(angles);
  Engine engine = initialize(module, config());
  Batch batch = batch_number(0);
  EXPECT_EQ(engine.forward(batch).item<double>(), loss_of(*plain, batch_number(0)));
  const auto& of_engine = module->named_buffers();
  for (const auto& buffer : plain->named_buffers()) {
    if (buffer.key().ends_with("num_batches_tracked")) continue;  // of which to() makes a 16-bit number
    EXPECT_EQ(of_engine[buffer.key()].scalar_type(), buffer.value().scalar_type()) << buffer.key();
    EXPECT_TRUE(of_engine[buffer.key()].equal(buffer.value())) << buffer.key();
  }
  EXPECT_TRUE(module->angles.equal(angles));
}

TEST_P(BatchNorm, TrainsAndGoesOnFromACheckpointBitForBit) {
  const auto module = made(), resumed = made();
  Engine engine = initialize(module, config());
  std::uint64_t next = 0;
  const auto train = [&](Engine& one, int steps) {
    double loss = 0;
    for (int step = 0; step < steps; ++step) loss = one.train_batch([&] { return batch_number(next++ % 2); });
    return loss;
  };
  const double first = train(engine, 1);
  const double last = train(engine, 60);
  EXPECT_LT(last, first * 0.7);
  EXPECT_GT(module->features->running_var.sub(1).abs().max().item<float>(), 0);

  const std::string folder = (folder_ / "saved").string();
  engine.save_checkpoint(folder);
  const std::uint64_t here = next;
  const double straight = train(engine, 3);
  next = here;
  Engine other = initialize(resumed, config());
  other.load_checkpoint(folder);
  EXPECT_EQ(train(other, 3), straight);
  EXPECT_EQ(resumed->features->running_mean.scalar_type(), GetParam().type);
  EXPECT_TRUE(resumed->features->running_mean.equal(module->features->running_mean));
}

TEST_P(BatchNorm, KeepsItsStatisticsInTheTypeOfItsWeightWhateverBuffersAreCastTo) {
  const auto module = made();
  Engine engine = initialize(module, config(R"(, "data_types": {"buffer_dtype": "fp32"})"));
  engine.train_batch([] { return batch_number(0); });
  EXPECT_EQ(module->features->running_var.scalar_type(), GetParam().type);
  EXPECT_EQ(module->angles.scalar_type(), torch::kFloat);
}

INSTANTIATE_TEST_SUITE_P(Precisions, BatchNorm,
                         ::testing::Values(Sixteen{R"("bf16": {"enabled": true})", torch::kBFloat16},
                                           Sixteen{R"("fp16": {"enabled": true, "initial_scale_power": 4})",
                                                   torch::kHalf},
                                           Sixteen{R"("amp": {"enabled": true, "opt_level": "O3"})", torch::kHalf}),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "Bf16" : info.index == 1 ? "Fp16" : "AmpO3");
                         });

/// What keeps parameters of normalisation in fp32 keeps the statistics there.
TEST(BatchNormTypes, StayFp32WithTheWeight) {
  TemporaryFolder folder;
  for (const char* section :
       {R"("amp": {"enabled": true, "opt_level": "O2"})", R"("torch_autocast": {"enabled": true})",
        R"("amp": {"enabled": true})", R"("data_types": {"buffer_dtype": "bf16"})"}) {
    write_bytes(folder / "config.json", R"({"train_batch_size": 16, "steps_per_print": null,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.02}}, )" +
                                            std::string(section) + "}");
    const auto module = made();
    Engine engine = initialize(module, (folder / "config.json").string());
    EXPECT_EQ(module->features->weight.scalar_type(), torch::kFloat) << section;
    EXPECT_EQ(module->features->running_mean.scalar_type(), torch::kFloat) << section;
    EXPECT_TRUE(std::isfinite(engine.train_batch([] { return batch_number(0); }))) << section;
  }
}

}  // namespace
}  // namespace capstan
