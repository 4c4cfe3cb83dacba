// gpt with quantised weights and activations: against plain LibTorch, and the same at every stage.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/round.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sign.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/config/config.hpp"
#include "core/engine/engine.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/parity/feature_models.hpp"
#include "tests/plugins/compression/quantized.hpp"
#include "tests/support/byte_samples.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

constexpr const char* kCorpus = CAPSTAN_TEST_SOURCE_DIR "/tests/parity/corpus.txt";
constexpr std::int64_t kSequence = 32, kRows = 4;
constexpr double kRate = 0.03;

constexpr const char* kAdamW =
    R"({"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}})";
// Rounding amplifies differences of the last bits, of which this one has next to none.
constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.03}})";

Json recorded() {
  return Json::parse(R"({"model": "gpt-split",
                         "args": {"layers": 2, "d": 64, "heads": 4, "seq": 32, "vocab": 256, "seed": 1}})");
}

struct Weights {
  int bits;
  const char* type;
  int groups;  // 0: one a row
};

std::string weights_params(const Weights& weights, int groups, const char* modules) {
  const std::string bits = std::to_string(weights.bits);
  return R"({"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true,
    "quantize_groups": )" +
         std::to_string(groups) + R"(, "quantization_type": ")" + weights.type +
         R"("}, "different_groups": {"wq1": {"params": {"start_bits": )" + bits + R"(, "target_bits": )" + bits +
         R"(}, "modules": )" + modules + "}}}";
}

constexpr const char* kAll = R"(["attn", "mlp"])";

std::string weights_section(const Weights& weights) {
  return R"("weight_quantization": )" + weights_params(weights, weights.groups, kAll);
}

/// Sections that give each weight as many groups as it has rows.
std::string row_sections(const Weights& weights) {
  return R"("weight_quantization": )" + weights_params(weights, 64, R"(["attn", "mlp.proj"])") +
         R"(}, "capstan": {"compressions": [{"type": "weight_quantization", "params": )" +
         weights_params(weights, 256, R"(["mlp.fc"])") + "}]";
}

const std::string kActivations = R"("activation_quantization": {"shared_parameters": {"enabled": true,
  "range_calibration": "static"}, "different_groups": {"aq1": {"params": {"bits": 8}, "modules": ["mlp.fc", "proj"]}}})";

std::string config_of(const std::string& compression, int ranks = 1, const std::string& zero = R"({"stage": 0})",
                      const std::string& optimizer = kAdamW) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(kRows / ranks) +
         R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer": )" + optimizer +
         R"(, "zero_optimization": )" + zero + R"(, "compression_training": {)" + compression + "}}";
}

/// An engine that trains the recorded model.
class Training {
 public:
  Training(const std::string& config, std::shared_ptr<Communicator> ranks,
           Model model = parity::feature_model(recorded()))
      : config_(read(config, ranks->size())),
        engine(std::move(model), config_, plugins_, ranks),
        data_(kCorpus, kSequence),
        order_(data_.samples(), 0, /*shuffle=*/false) {
    next_ = engine.rank() * config_.batch.micro_batch_size;
  }

  Batch next() {
    Batch batch = data_.batch(order_, next_, config_.batch.micro_batch_size);
    next_ += config_.batch.micro_batch_size * engine.world_size();
    return batch;
  }
  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(engine.train_batch([&] { return next(); }));
    return losses;
  }
  void skip(int steps) { next_ += kRows * steps; }
  std::vector<at::Tensor> values() {
    const GatherScope held = engine.gather();
    std::vector<at::Tensor> copies;
    for (const NamedTensor& one : engine.model().parameters()) copies.push_back(one.tensor.detach().clone());
    return copies;
  }

 private:
  Config read(const std::string& text, int ranks) {
    ConfigContext context;
    context.world_size = ranks;
    return load_config({text, "test", false}, context, plugins_);
  }

  PluginIndex plugins_;
  Config config_;

 public:
  Engine engine;

 private:
  testing::ByteSamples data_;
  BatchOrder order_;
  std::int64_t next_ = 0;
};

/// The formulas of the quantisers, by LibTorch's own operators.
at::Tensor quantised(const at::Tensor& weight, const Weights& how) {
  const at::Tensor x = weight.reshape({how.groups > 0 ? how.groups : weight.size(0), -1});
  const double levels = std::ldexp(1.0, how.bits);
  const at::Tensor mean = x.abs().mean({1}, true);
  at::Tensor made;
  if (how.bits == 1) {
    made = x.sign() * mean;
  } else if (how.bits == 2) {
    const at::Tensor above = x.abs() > mean * 0.7;
    made = x.sign() * above * ((x.abs() * above).sum({1}, true) / above.sum({1}, true));
  } else if (*how.type == 's') {
    const at::Tensor scale = x.abs().amax({1}, true) * 2 / levels;
    made = at::round(x / scale).clamp(-levels / 2, levels / 2 - 1) * scale;
  } else {
    const at::Tensor low = x.amin({1}, true), scale = (x.amax({1}, true) - low) / levels;
    const at::Tensor zero = at::round(low / scale) * scale;
    made = at::round((x - zero) / scale).clamp(0, levels - 1) * scale + zero;
  }
  return made.reshape(weight.sizes());
}

/// The same training in plain LibTorch: gradient descent on masters, the model on what they are rounded to. `cut`:
/// without the gradients of quantised weights.
std::vector<double> plain_losses(const Weights& how, int steps, bool cut) {
  Model model = parity::feature_model(recorded());
  const testing::ByteSamples data(kCorpus, kSequence);
  const BatchOrder order(data.samples(), 0, /*shuffle=*/false);
  std::vector<at::Tensor> masters;
  std::vector<bool> is_quantised;
  for (const NamedTensor& one : model.parameters()) {
    masters.push_back(one.tensor.detach().clone());
    const bool layer = one.name.find("attn") != std::string::npos || one.name.find("mlp") != std::string::npos;
    is_quantised.push_back(layer && one.tensor.dim() == 2);
  }
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const at::NoGradGuard no_grad;
      at::Tensor copy = model.parameters()[i].tensor;
      copy.copy_(is_quantised[i] ? quantised(masters[i], how) : masters[i]);
      copy.mutable_grad().reset();
    }
    Batch batch = data.batch(order, step * kRows, kRows);
    const at::Tensor loss = model.forward(batch);
    losses.push_back(loss.item<double>());
    loss.backward();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) {
      if (!cut || !is_quantised[i]) masters[i] -= model.parameters()[i].tensor.grad() * kRate;
    }
  }
  return losses;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

class QuantizedWeights : public ::testing::TestWithParam<Weights> {};

TEST_P(QuantizedWeights, TrainAsInPlainLibTorch) {
  const std::string section = GetParam().groups > 0 ? weights_section(GetParam()) : row_sections(GetParam());
  Training training(config_of(section, 1, R"({"stage": 0})", kSgd), Communicator::alone());
  const std::vector<double> losses = training.steps(60);
  EXPECT_LE(farthest(losses, plain_losses(GetParam(), 60, /*cut=*/false)), 2e-4);
  EXPECT_GT(farthest(losses, plain_losses(GetParam(), 60, /*cut=*/true)), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Bits, QuantizedWeights,
                         ::testing::Values(Weights{8, "symmetric", 1}, Weights{4, "symmetric", 64},
                                           Weights{4, "symmetric", 0}, Weights{4, "asymmetric", 0},
                                           Weights{4, "asymmetric", 4}, Weights{2, "symmetric", 1},
                                           Weights{1, "symmetric", 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.bits) + info.param.type +
                                  (info.param.groups > 0 ? std::to_string(info.param.groups) : "PerRow");
                         });

/// The quantiser of inputs by LibTorch's own operators.
struct Inputs {
  bool is_static = false, cut = false;
  std::map<std::string, std::pair<float, float>> ranges;  // by layer

  at::Tensor operator()(const std::string& layer, const at::Tensor& input) {
    const at::Tensor x = input.detach();
    at::Tensor most = x.abs().amax({-1}, true);  // of each token
    if (is_static) {
      const float low = x.min().item<float>(), high = x.max().item<float>();
      auto& range = ranges.try_emplace(layer, low, high).first->second;
      range = {range.first * 0.95F + low * 0.05F, range.second * 0.95F + high * 0.05F};
      most = at::scalar_tensor(std::max(std::abs(range.first), std::abs(range.second)), at::kFloat);
    }
    const at::Tensor scale = most / 128, made = at::round(x / scale).clamp(-128, 127) * scale;
    return cut ? made : input + (made - input).detach();
  }
};

/// gpt-split once more, with the inputs of its blocks' layers quantised.
class PlainGpt {
 public:
  explicit PlainGpt(const Inputs& inputs) : inputs_(inputs), model_(parity::feature_model(recorded())) {
    for (const NamedTensor& one : model_.parameters()) values_[one.name] = one.tensor;
  }

  double step(const Batch& batch) {
    const at::Tensor result = loss(batch.tensors.at("input_ids"), batch.tensors.at("labels"));
    result.backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, value] : values_) {
      if (value.grad().defined()) value -= value.grad() * kRate;
      value.mutable_grad().reset();
    }
    return result.item<double>();
  }

 private:
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(x, {x.size(-1)}, values_.at(name + ".weight"), values_.at(name + ".bias"));
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) {
    return at::linear(inputs_(name, x), values_.at(name + ".weight"), values_.at(name + ".bias"));
  }
  at::Tensor attention(const std::string& name, const at::Tensor& x) {
    const auto heads = [&](const char* part) {
      return linear(name + part, x).view({x.size(0), x.size(1), 4, -1}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads(".q"), heads(".k"), heads(".v"), {}, 0.0, /*is_causal=*/true);
    return linear(name + ".proj", mixed.transpose(1, 2).reshape(x.sizes()));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) {
    at::Tensor x = values_.at("tok_emb.weight").index({ids}) + values_.at("pos_emb.weight").narrow(0, 0, ids.size(1));
    for (const std::string block : {"blocks.0", "blocks.1"}) {
      x = x + attention(block + ".attn", norm(block + ".ln1", x));
      const at::Tensor wide = at::gelu(linear(block + ".mlp.fc", norm(block + ".ln2", x)), "tanh");
      x = x + linear(block + ".mlp.proj", wide);
    }
    const at::Tensor logits = at::linear(norm("ln_f", x), values_.at("head.weight"));
    return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
  }

  Inputs inputs_;
  Model model_;
  std::map<std::string, at::Tensor> values_;
};

std::vector<double> plain_losses(const Inputs& inputs, int steps) {
  PlainGpt gpt(inputs);
  const testing::ByteSamples data(kCorpus, kSequence);
  const BatchOrder order(data.samples(), 0, /*shuffle=*/false);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(gpt.step(data.batch(order, step * kRows, kRows)));
  return losses;
}

TEST(QuantizedActivations, TrainGptAsInPlainLibTorch) {
  for (const bool is_static : {true, false}) {
    const std::string section = R"("activation_quantization": {"shared_parameters": {"enabled": true,
      "range_calibration": ")" + std::string(is_static ? "static" : "dynamic") +
                                R"("}, "different_groups": {"aq1": {"params": {"bits": 8}, "modules": )" + kAll + "}}}";
    Training training(config_of(section, 1, R"({"stage": 0})", kSgd), Communicator::alone());
    const std::vector<double> losses = training.steps(60);
    EXPECT_LE(farthest(losses, plain_losses(Inputs{is_static, false, {}}, 60)), 2e-4) << is_static;
    EXPECT_LE(farthest(losses, plain_losses(Inputs{is_static, false, {}}, 60)), 2e-4) << is_static;
    EXPECT_GT(farthest(losses, plain_losses(Inputs{is_static, true, {}}, 60)), 2e-4) << is_static;
  }
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

class QuantizedRanks : public ::testing::TestWithParam<int> {};

TEST_P(QuantizedRanks, TrainTheSameBitsAtEveryStageAndGoOnAtAnother) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    if (communicator.rank() == 0) folder.emplace();
    const std::string dir = communicator.all_gather_text("test: folder", folder ? folder->path().string() : "")[0];
    const int ranks = communicator.size();
    for (const std::string& section :
         {weights_section({8, "symmetric", 64}) + ", " + kActivations, weights_section({4, "asymmetric", 64})}) {
      Training reference(config_of(section, ranks), shared(communicator));
      std::vector<double> losses = reference.steps(7);
      reference.engine.save_checkpoint(dir, "seven");
      const std::vector<double> later = reference.steps(3);
      const std::vector<at::Tensor> values = reference.values();
      for (const char* zero :
           {R"({"stage": 1})", R"({"stage": 2})", R"({"stage": 3, "stage3_param_persistence_threshold": 0})"}) {
        Training run(config_of(section, ranks, zero), shared(communicator));
        EXPECT_EQ(run.steps(7), losses) << zero;
        Training resumed(config_of(section, ranks, zero), shared(communicator));
        resumed.engine.load_checkpoint(dir, "seven");
        resumed.skip(7);
        EXPECT_EQ(resumed.steps(3), later) << zero;
        const std::vector<at::Tensor> found = resumed.values();
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(found[i], values[i])) << zero << i;
      }
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, QuantizedRanks, ::testing::Values(2, 4));

constexpr const char* kSpoilt = "blocks.0.mlp.fc.weight";

/// The recorded model with one value of a weight replaced.
Model spoilt_model(float value) {
  const at::NoGradGuard no_grad;
  Model model = parity::feature_model(recorded());
  for (const NamedTensor& one : model.parameters()) {
    if (one.name == kSpoilt) at::Tensor(one.tensor).view({-1}).select(0, 100).fill_(value);
  }
  return model;
}

std::string failure_of(Training& training) {
  try {
    training.steps(1);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(QuantizedRanks, ShowNaNAndInfinitiesInTheSameBitsAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const Weights& how : {Weights{8, "symmetric", 4}, Weights{4, "asymmetric", 4}, Weights{2, "symmetric", 4},
                               Weights{1, "symmetric", 4}}) {
      for (const float value : {infinity - infinity, infinity}) {
        const auto run = [&](const char* zero) {
          Training training(config_of(weights_section(how), 2, zero), shared(communicator), spoilt_model(value));
          std::vector<at::Tensor> found = training.values();
          EXPECT_THAT(failure_of(training), ::testing::HasSubstr("the loss is not finite at step 0"))
              << zero << how.bits << value;
          std::int64_t lost = 0;
          for (at::Tensor& one : found) {
            lost += one.isnan().sum().item<std::int64_t>();
            one = one.view(at::kInt);
          }
          EXPECT_EQ(lost, 256 * 64 / 4) << zero << how.bits << value;  // one group
          return found;
        };
        const std::vector<at::Tensor> wanted = run(R"({"stage": 0})");
        for (const char* zero :
             {R"({"stage": 1})", R"({"stage": 2})", R"({"stage": 3, "stage3_param_persistence_threshold": 0})"}) {
          const std::vector<at::Tensor> found = run(zero);
          for (std::size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(at::equal(found[i], wanted[i])) << zero << how.bits << value << " " << i;
          }
        }
      }
    }
  });
}

/// Bytes that this rank has sent by gathering tensors.
std::uint64_t gathered(Engine& engine) {
  const auto traffic = engine.comms_log().traffic();
  const auto found = traffic.find("all_gather");
  return found == traffic.end() ? 0 : found->second.bytes;
}

TEST(QuantizedRanks, SendCodesAtStageThree) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string zero = R"({"stage": 3, "stage3_param_persistence_threshold": 0})";
    const auto bytes_of = [&](const std::string& section) {
      Training run(config_of(section, 2, zero), shared(communicator));
      run.steps(1);
      const std::uint64_t before = gathered(run.engine);
      run.steps(3);
      return static_cast<double>(gathered(run.engine) - before);
    };
    const double plain = bytes_of("");
    // All but the linear layers of blocks travel as they are, and biases: 98,304 of 134,912 elements are quantised.
    const double dense = plain * (134912 - 98304) / 134912;
    EXPECT_LE((bytes_of(weights_section({8, "symmetric", 64})) - dense) / (plain - dense), 0.27);
    EXPECT_LE((bytes_of(weights_section({4, "symmetric", 64})) - dense) / (plain - dense), 0.15);
  });
}

}  // namespace
}  // namespace capstan::testing
