// Training with rounded inputs of layers, against the same training in plain LibTorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>

#include "capstan/capstan.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

constexpr double kRate = 0.05;
constexpr int kUpdates = 60;

/// Two layers, the inputs of both of which may be changed on their way.
struct NetImpl : torch::nn::Module {
  using Change = std::function<torch::Tensor(const char* layer, const torch::Tensor& input)>;
  NetImpl()
      : fc(register_module("fc", torch::nn::Linear(8, 32))), out(register_module("out", torch::nn::Linear(32, 4))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    const auto changed = [&](const char* layer, const torch::Tensor& input) {
      return change ? change(layer, input) : input;
    };
    const torch::Tensor hidden = torch::tanh(fc(changed("fc", x)));
    return torch::mse_loss(out(changed("out", hidden)), y);
  }
  torch::nn::Linear fc, out;
  Change change;
};
TORCH_MODULE(Net);

Batch batch_number(int index) {
  const torch::Tensor x = torch::sin(torch::arange(16 * 8, torch::kFloat).view({16, 8}) * 0.37 + index);
  Batch batch;
  batch.tensors = {{"input_ids", x}, {"labels", torch::cos(x.narrow(1, 0, 4) * 2)}};
  return batch;
}

/// The quantiser of activations by LibTorch's own operators, with a straight-through gradient or none.
struct Quantiser {
  bool is_static = false, symmetric = true, cut = false;
  std::map<std::string, std::pair<float, float>> ranges;

  torch::Tensor operator()(const char* layer, const torch::Tensor& input) {
    const torch::Tensor x = input.detach();
    torch::Tensor low = x.amin({-1}, true), high = x.amax({-1}, true);
    if (is_static) {
      auto& [lo, hi] = ranges[layer];
      const float least = x.min().item<float>(), most = x.max().item<float>();
      if (lo == hi) lo = least, hi = most;
      lo = lo * 0.95F + least * 0.05F;
      hi = hi * 0.95F + most * 0.05F;
      low = torch::tensor(lo), high = torch::tensor(hi);
    }
    torch::Tensor made;
    if (symmetric) {
      const torch::Tensor scale = torch::maximum(low.abs(), high) / 128;
      made = torch::round(x / scale).clamp(-128, 127) * scale;
    } else {
      const torch::Tensor scale = (high - low) / 256, zero = torch::round(low / scale) * scale;
      made = torch::round((x - zero) / scale).clamp(0, 255) * scale + zero;
    }
    return cut ? made : input + (made - input).detach();
  }
};

std::vector<double> plain_losses(Quantiser quantiser) {
  torch::manual_seed(4);
  Net net;
  net->change = [&](const char* layer, const torch::Tensor& input) { return quantiser(layer, input); };
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
  std::vector<double> losses;
  for (int step = 0; step < kUpdates; ++step) {
    const Batch batch = batch_number(step);
    sgd.zero_grad();
    const torch::Tensor loss = net(batch.tensors.at("input_ids"), batch.tensors.at("labels"));
    losses.push_back(loss.item<double>());
    loss.backward();
    sgd.step();
  }
  return losses;
}

std::string config_file(const TemporaryFolder& folder, const Quantiser& how) {
  const std::string file = (folder.path() / "config.json").string();
  std::ofstream(file) << R"({"train_batch_size": 16, "steps_per_print": null, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
    "compression_training": {"activation_quantization": {"shared_parameters": {"enabled": true,
      "quantization_type": ")"
                      << (how.symmetric ? "symmetric" : "asymmetric") << R"(", "range_calibration": ")"
                      << (how.is_static ? "static" : "dynamic") << R"("},
      "different_groups": {"aq1": {"params": {"bits": 8}, "modules": ["fc", "out", "other"]}}}}})";
  return file;
}

std::vector<double> losses_of(const Quantiser& how) {
  TemporaryFolder folder;
  torch::manual_seed(4);
  Engine engine = initialize(std::make_shared<NetImpl>(), config_file(folder, how));
  std::vector<double> losses;
  for (int step = 0; step < kUpdates; ++step) losses.push_back(engine.train_batch([&] { return batch_number(step); }));
  return losses;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

class QuantizedInputs : public ::testing::TestWithParam<Quantiser> {};

TEST_P(QuantizedInputs, TrainAsInPlainLibTorch) {
  Quantiser cut = GetParam();
  cut.cut = true;
  const std::vector<double> losses = losses_of(GetParam());
  EXPECT_LE(farthest(losses, plain_losses(GetParam())), 2e-4);
  EXPECT_GT(farthest(losses, plain_losses(cut)), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(EightBits, QuantizedInputs,
                         ::testing::Values(Quantiser{false, true}, Quantiser{true, true}, Quantiser{false, false},
                                           Quantiser{true, false}),
                         [](const auto& info) {
                           return std::string(info.param.is_static ? "Static" : "Dynamic") +
                                  (info.param.symmetric ? "Symmetric" : "Asymmetric");
                         });

/// A layer that its own weight does not work in.
struct Bypassed : torch::nn::Module {
  Bypassed()
      : fc(register_module("fc", torch::nn::Linear(8, 4))), other(register_module("other", torch::nn::Linear(8, 4))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss((x.unsqueeze(1) * fc->weight).sum(-1), y);
  }
  torch::nn::Linear fc, other;
};

TEST(QuantizedInputsOfAModule, AreRefusedWhereNoOperatorUsesTheWeight) {
  TemporaryFolder folder;
  const std::string file = config_file(folder, {});
  Engine engine = initialize(std::make_shared<Bypassed>(), file);
  EXPECT_THAT([&] { engine.train_batch([] { return batch_number(0); }); },
              ::testing::ThrowsMessage<RuntimeFault>(
                  "compression_training.activation_quantization.different_groups.aq1.modules: the inputs of 'fc', "
                  "'other' are to be compressed, but no linear layer or convolution used the weights of these modules "
                  "in the first forward. Leave them out."));
}

}  // namespace
}  // namespace capstan
