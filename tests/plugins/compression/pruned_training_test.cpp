// Pruning against a second implementation: plain LibTorch with score parameters and masks that autograd sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/compression/compressed_weights.hpp"
#include "core/engine/engine.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kChannels = 6, kHidden = 16, kHeads = 4, kClasses = 10;
constexpr int kUpdates = 60;
constexpr double kClip = 0.1, kRate = 0.2, kMomentum = 0.9, kDecay = 0.01;

/// Two convolutions with a batch norm between, two linear layers.
std::vector<NamedTensor> initial_values() {
  torch::manual_seed(3);
  return {{"conv1.weight", torch::randn({kChannels, 1, 3, 3}) * 0.5},
          {"conv1.bias", torch::randn({kChannels}) * 0.2},
          {"bn1.weight", torch::rand({kChannels}) + 0.5},
          {"bn1.bias", torch::randn({kChannels}) * 0.3},
          {"conv2.weight", torch::randn({8, kChannels, 3, 3}) * 0.2},
          {"fc1.weight", torch::randn({kHidden, 8}) * 0.4},
          {"fc1.bias", torch::randn({kHidden}) * 0.2},
          {"fc2.weight", torch::randn({kClasses, kHidden}) * 0.3},
          {"fc2.bias", torch::zeros({kClasses})}};
}

/// With the running statistics of the batch norm, where they are there: updated in training, used in evaluation.
at::Tensor loss_of(const Tensors& p, const at::Tensor& images, const at::Tensor& labels, bool training = true) {
  const auto running = [&](const char* name) { return p.contains(name) ? p.at(name) : at::Tensor(); };
  at::Tensor x = at::conv2d(images, p.at("conv1.weight"), p.at("conv1.bias"), 1, 1);
  x = at::gelu(at::batch_norm(x, p.at("bn1.weight"), p.at("bn1.bias"), running("bn1.running_mean"),
                              running("bn1.running_var"), training, 0.1, 1e-5, false));
  x = at::relu(at::conv2d(x, p.at("conv2.weight"), {}, 2, 1)).mean({2, 3});
  x = at::gelu(at::linear(x, p.at("fc1.weight"), p.at("fc1.bias")));
  return at::cross_entropy_loss(at::linear(x, p.at("fc2.weight"), p.at("fc2.bias")), labels);
}

/// Images whose class shows in their brightness.
std::pair<at::Tensor, at::Tensor> batch_of(std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + step));
  const at::Tensor labels = at::randint(0, kClasses, {8}, generator, at::kLong);
  const at::Tensor noise = at::randn({8, 1, 8, 8}, generator);
  return {noise * 0.5 + labels.to(at::kFloat).view({8, 1, 1, 1}) * 0.3, labels};
}

/// A model of these tensors, as the engine takes one.
struct Net {
  std::vector<NamedTensor> parameters = initial_values();
  std::vector<NamedTensor> buffers = {{"bn1.running_mean", torch::zeros({kChannels})},
                                      {"bn1.running_var", torch::ones({kChannels})}};
  bool training = true;

  Net() {
    for (NamedTensor& one : parameters) one.tensor.requires_grad_(true);
  }
  static const capstan_model& table() {
    static const capstan_model instance = [] {
      capstan_model table{};
      table.struct_size = sizeof table;
      table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
        for (const auto& [path, name] :
             std::initializer_list<std::pair<const char*, const char*>>{{"", "Net"},
                                                                        {"conv1", "torch::nn::Conv2dImpl"},
                                                                        {"bn1", "torch::nn::BatchNorm2dImpl"},
                                                                        {"conv2", "torch::nn::Conv2dImpl"},
                                                                        {"fc1", "torch::nn::LinearImpl"},
                                                                        {"fc2", "torch::nn::LinearImpl"}}) {
          visitor->module(visitor->ctx, as_str(path), as_str(name));
        }
        for (const NamedTensor& one : static_cast<Net*>(self)->parameters) {
          visitor->tensor(visitor->ctx, as_str(one.name), handle_of(one.tensor), CAPSTAN_ROLE_PARAMETER);
        }
        for (const NamedTensor& one : static_cast<Net*>(self)->buffers) {
          visitor->tensor(visitor->ctx, as_str(one.name), handle_of(one.tensor), CAPSTAN_ROLE_BUFFER);
        }
        return CAPSTAN_OK;
      };
      table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
        const auto& net = *static_cast<Net*>(self);
        Tensors tensors;
        for (const auto* list : {&net.parameters, &net.buffers}) {
          for (const NamedTensor& one : *list) tensors[one.name] = one.tensor;
        }
        *loss = reinterpret_cast<capstan_tensor>(
            new at::Tensor(loss_of(tensors, batch->tensors.at("images"), batch->tensors.at("labels"), net.training)));
        return CAPSTAN_OK;
      };
      table.training = [](void* self, int on, capstan_error*) {
        static_cast<Net*>(self)->training = on != 0;
        return CAPSTAN_OK;
      };
      return table;
    }();
    return instance;
  }
};

/// Which values a mask multiplies, and how it looks there.
struct Masked {
  std::string parameter;
  std::function<at::Tensor(const at::Tensor& mask, const at::Tensor& values)> spread;
};

at::Tensor by_rows(const at::Tensor& mask, const at::Tensor& values) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(values.dim()), 1);
  shape[0] = mask.numel();
  return mask.view(shape);
}
at::Tensor by_heads(const at::Tensor& mask, const at::Tensor& values) {
  return mask.view({-1}).repeat_interleave(values.size(1) / mask.numel()).view({1, -1});
}
at::Tensor by_elements(const at::Tensor& mask, const at::Tensor&) { return mask; }

struct Method {
  std::string name, section;  // for people; of compression_training
  std::string scores;         // the score parameter; empty: a fixed mask of `magnitudes`
  std::vector<std::int64_t> shape;
  std::function<at::Tensor(const Tensors&)> magnitudes;
  std::int64_t keep, offset;
  std::vector<Masked> masked;
};

std::string section(const std::string& technique, const std::string& method, std::int64_t offset, double ratio,
                    const std::string& modules, const std::string& related = "", const std::string& more = "") {
  return "\"" + technique + R"(": {"shared_parameters": {"enabled": true, "method": ")" + method +
         R"(", "schedule_offset": )" + std::to_string(offset) + more + R"(}, "different_groups": {"g": {"params": {)" +
         "\"dense_ratio\": " + std::to_string(ratio) + R"(}, "modules": [")" + modules + "\"]" +
         (related.empty() ? "" : R"(, "related_modules": [[)" + related + "]]") + "}}}";
}

std::vector<Method> methods() {
  const std::vector<Masked> channel = {
      {"conv1.weight", by_rows}, {"conv1.bias", by_rows}, {"bn1.weight", by_rows}, {"bn1.bias", by_rows}};
  const std::vector<Masked> row = {{"fc1.weight", by_rows}, {"fc1.bias", by_rows}};
  const auto norms = [](const char* name) {
    return [name](const Tensors& p) { return p.at(name).abs().flatten(1).sum(1); };
  };
  return {{"row_l1", section("row_pruning", "l1", 3, 0.5, "fc1", "\"fc2\""), "", {}, norms("fc1.weight"), 8, 3, row},
          {"row_topk",
           section("row_pruning", "topk", 2, 0.5, "fc1", "\"fc2\""),
           "fc1.row_mask_scores",
           {kHidden, 1},
           {},
           8,
           2,
           row},
          {"head_topk",
           section("head_pruning", "topk", 0, 0.5, "fc2", "", R"(, "num_heads": 4)"),
           "fc2.head_pruning_scores",
           {1, kHeads},
           {},
           2,
           0,
           {{"fc2.weight", by_heads}}},
          {"channel_l1",
           section("channel_pruning", "l1", 0, 0.5, "conv1", "\"conv2\", \"bn1\""),
           "",
           {},
           norms("conv1.weight"),
           3,
           0,
           channel},
          {"channel_topk",
           section("channel_pruning", "topk", 1, 0.6, "conv1", "\"conv2\", \"bn1\""),
           "conv1.channel_mask_scores",
           {kChannels, 1, 1, 1},
           {},
           4,
           1,
           channel},
          {"sparse_l1",
           section("sparse_pruning", "l1", 0, 0.3, "conv2"),
           "",
           {},
           [](const Tensors& p) { return p.at("conv2.weight").abs(); },
           130,
           0,
           {{"conv2.weight", by_elements}}},
          {"sparse_topk",
           section("sparse_pruning", "topk", 4, 0.3, "conv2"),
           "conv2.sparse_mask_scores",
           {8, kChannels, 3, 3},
           {},
           130,
           4,
           {{"conv2.weight", by_elements}}}};
}

at::Tensor mask_of(const at::Tensor& scores, std::int64_t keep) {
  at::Tensor mask = at::zeros({scores.numel()});
  mask.index_fill_(0, std::get<1>(scores.detach().reshape({-1}).topk(keep)), 1);
  return mask.view(scores.sizes());
}

/// How the plain implementation goes wrong, to show that it would be noticed.
enum class Mistake { kNone, kGradientNotMasked };

/// SGD with momentum and decay on gradients clipped to a norm, which shows whatever is wrong with one of these.
struct Plain {
  Tensors parameters;
  at::Tensor scores, mask;
  std::map<std::string, at::Tensor> momentum;
  int updates = 0;

  Plain(const Method& method, const at::Tensor& initial_scores) {
    for (const NamedTensor& one : initial_values()) parameters[one.name] = one.tensor.clone();
    if (initial_scores.defined()) scores = initial_scores.clone();
    if (method.magnitudes) mask = mask_of(method.magnitudes(parameters), method.keep);
  }

  double step(const Method& method, std::int64_t step, Mistake mistake) {
    std::vector<std::pair<std::string, at::Tensor>> leaves;
    Tensors used;
    for (auto& [name, values] : parameters) {
      leaves.emplace_back(name, values.detach().requires_grad_(true));
      used[name] = leaves.back().second;
    }
    if (scores.defined()) {
      mask = mask_of(scores, method.keep);
      leaves.emplace_back("scores", scores.detach().requires_grad_(true));
    }
    if (updates >= method.offset) {
      // The straight-through estimator: forward sees the mask, backward the scores.
      const at::Tensor seen = scores.defined() ? mask + (leaves.back().second - leaves.back().second.detach()) : mask;
      for (const Masked& one : method.masked) {
        at::Tensor& values = used[one.parameter];
        const at::Tensor product = values * one.spread(seen, values);
        if (mistake == Mistake::kGradientNotMasked) {
          const at::Tensor for_scores = one.spread(seen, values) * values.detach();
          values = values + (product - values).detach();
          if (scores.defined()) values = values + for_scores - for_scores.detach();
        } else {
          values = product;
        }
      }
    }
    const auto [images, labels] = batch_of(step);
    const at::Tensor loss = loss_of(used, images, labels);
    loss.backward();
    double squares = 0;
    for (const auto& [name, leaf] : leaves) {
      if (leaf.grad().defined()) squares += leaf.grad().to(at::kDouble).square().sum().item<double>();
    }
    const double factor = std::min(1.0, kClip / (std::sqrt(squares) + 1e-6));
    ++updates;
    for (const auto& [name, leaf] : leaves) {
      if (leaf.grad().defined()) update(name, leaf.grad() * factor);
    }
    return loss.item<double>();
  }

  void update(const std::string& name, const at::Tensor& gradient) {
    at::Tensor& values = name == "scores" ? scores : parameters.at(name);
    at::Tensor& velocity = momentum[name];
    const at::Tensor decayed = gradient + kDecay * values;
    velocity = velocity.defined() ? kMomentum * velocity + decayed : decayed;
    values = values - kRate * velocity;
  }
};

/// The engine's run of a method, as the configuration has it.
struct Ours {
  PluginIndex plugins;
  Net net;
  std::unique_ptr<Engine> engine;

  explicit Ours(const Method& method) {
    const std::string text = R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": )" +
                             std::to_string(kClip) + R"(, "optimizer": {"type": "SGD", "params": {"lr": )" +
                             std::to_string(kRate) + R"(, "momentum": )" + std::to_string(kMomentum) +
                             R"(, "weight_decay": )" + std::to_string(kDecay) + R"(}}, "compression_training": {)" +
                             method.section + "}}";
    const Config config = load_config({text, "test", false}, {}, plugins);
    engine = std::make_unique<Engine>(Model(
                                          &Net::table(), &net, [](void*) {}, "net"),
                                      config, plugins);
  }
  at::Tensor tensor(const std::string& name) const {
    for (const NamedTensor& one : engine->model().parameters()) {
      if (one.name == name) return one.tensor.detach();
    }
    return {};
  }
  double step(std::int64_t index) {
    return engine->train_batch([&] {
      Batch batch;
      std::tie(batch.tensors["images"], batch.tensors["labels"]) = batch_of(index);
      return batch;
    });
  }
};

class PrunedTraining : public ::testing::TestWithParam<Method> {};

TEST_P(PrunedTraining, IsThatOfAPlainImplementationWithMasksInItsGraph) {
  const Method& method = GetParam();
  Ours ours(method);
  Plain plain(method, method.scores.empty() ? at::Tensor() : ours.tensor(method.scores));
  if (!method.scores.empty()) {
    ASSERT_EQ(ours.tensor(method.scores).sizes(), at::IntArrayRef(method.shape));
  }
  for (int step = 0; step < kUpdates; ++step) {
    // What the next forward uses is zero exactly where the plain implementation's mask is.
    for (const Masked& one : method.masked) {
      const at::Tensor used = ours.tensor(one.parameter), raw = plain.parameters.at(one.parameter);
      at::Tensor mask = plain.scores.defined() ? mask_of(plain.scores, method.keep) : plain.mask;
      if (plain.updates < method.offset) mask = at::ones_like(mask);
      const at::Tensor expected = at::ones_like(raw) * one.spread(mask, raw);
      ASSERT_TRUE(at::equal(used.ne(0), expected.logical_and(raw.ne(0)))) << step << " " << one.parameter;
    }
    const double expected = plain.step(method, step, Mistake::kNone);
    ASSERT_NEAR(ours.step(step), expected, 2e-4 * expected) << step;
  }
  for (const auto& [name, values] : plain.parameters) {
    if (name == "conv1.bias") continue;  // the batch norm takes it out: its gradients are rounding errors
    const bool is_masked = std::any_of(method.masked.begin(), method.masked.end(),
                                       [&, &name = name](const Masked& one) { return one.parameter == name; });
    const at::Tensor mine = ours.tensor(name);
    const at::Tensor theirs = is_masked ? at::where(mine.ne(0), values, at::zeros_like(values)) : values;
    EXPECT_LT((mine - theirs).abs().max().item<double>(), 2e-3) << name;
  }
}

TEST_P(PrunedTraining, WouldShowAGradientThatIsNotMasked) {
  const Method& method = GetParam();
  Ours ours(method);
  Plain plain(method, method.scores.empty() ? at::Tensor() : ours.tensor(method.scores));
  double greatest = 0;
  for (int step = 0; step < kUpdates; ++step) {
    const double expected = plain.step(method, step, Mistake::kGradientNotMasked);
    greatest = std::max(greatest, std::abs(ours.step(step) - expected) / expected);
  }
  EXPECT_GT(greatest, 2e-4);
}

/// What clean-up leaves of a run's checkpoint.
Tensors cleaned(const Ours& run, const Method& method) {
  const TemporaryFolder folder;
  run.engine->save_checkpoint(folder.path().string(), "end");
  const CheckpointContents contents = read_checkpoint(folder.path(), "end");
  const Json sections = Json::parse("{" + method.section + "}");
  const auto& [type, params] = *sections.as_object().begin();
  static const capstan_host host = make_host();
  Registry registry(run.plugins);
  Compressions compressions;
  compressions.add(registry.create("test", "compression", type, params, &host));
  compressions.plan(contents.state.at("modules"));
  CompressedWeights weights(contents, "end", compressions, kUpdates, std::nullopt);
  Tensors left;
  for (const CompressedWeights::Weight& weight : weights.all()) {
    left[weight.name()] = weight.values.read(0, weight.numel()).clone().view(weight.shape());
  }
  return left;
}

TEST_P(PrunedTraining, LeavesTheSameFunctionWhenWhatIsMaskedIsRemoved) {
  const Method& method = GetParam();
  Ours ours(method);
  for (int step = 0; step < kUpdates; ++step) ours.step(step);
  const auto [images, labels] = batch_of(1000);
  const double masked = ours.engine->eval_batch(
      [&, images = images, labels = labels] {
        Batch batch;
        batch.tensors = {{"images", images}, {"labels", labels}};
        return batch;
      },
      1);
  const Tensors left = cleaned(ours, method);
  EXPECT_NEAR(loss_of(left, images, labels, /*training=*/false).item<double>(), masked, 2e-6);
  if (method.name.starts_with("channel")) {
    EXPECT_EQ(left.at("conv1.weight").size(0), method.keep);
    EXPECT_EQ(left.at("conv2.weight").size(1), method.keep);
    for (const char* name : {"bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"}) {
      EXPECT_EQ(left.at(name).numel(), method.keep) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, PrunedTraining, ::testing::ValuesIn(methods()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::testing
