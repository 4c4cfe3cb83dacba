#include "core/memory/deferred_values.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>

#include "core/errors.hpp"

namespace capstan {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

Tensors parameters_of(torch::nn::Module& module) {
  Tensors all = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) all.push_back(buffer);
  return all;
}

/// Builds it plainly and without values, and compares values and what the generator gives next. Returns how many
/// tensors had no values when it was built.
int expect_plain_values(const std::function<Tensors()>& build) {
  torch::manual_seed(7);
  const Tensors expected = clones(build());
  const at::Tensor next = torch::randn({3}), after = torch::randn({3});

  torch::manual_seed(7);
  DeferredValues values(1);
  Tensors tensors;
  {
    const DeferredValues::Scope scope(values);
    tensors = build();
  }
  EXPECT_TRUE(at::equal(torch::randn({3}), next));
  int waiting = 0;
  for (const at::Tensor& tensor : tensors) waiting += values.has(tensor);
  values.make([](const c10::Storage&) { return false; });
  EXPECT_TRUE(at::equal(torch::randn({3}), after));
  EXPECT_EQ(tensors.size(), expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_FALSE(values.has(tensors[i]));
    EXPECT_EQ(tensors[i].strides(), expected[i].strides()) << i;
    EXPECT_TRUE(at::equal(tensors[i].detach(), expected[i])) << i;
  }
  return waiting;
}

template <class Holder, class... Options>
int expect_module(const Options&... options) {
  return expect_plain_values([&] {
    Holder module(options...);
    return parameters_of(*module);
  });
}

TEST(DeferredValues, OfLibTorchsModulesAreThoseOfPlainConstruction) {
  EXPECT_EQ(expect_module<torch::nn::Linear>(20, 30), 2);
  EXPECT_EQ(expect_module<torch::nn::Conv2d>(torch::nn::Conv2dOptions(3, 8, 3)), 2);
  EXPECT_EQ(expect_module<torch::nn::Embedding>(torch::nn::EmbeddingOptions(50, 16).padding_idx(3)), 1);
  EXPECT_EQ(expect_module<torch::nn::LayerNorm>(torch::nn::LayerNormOptions({16})), 2);
  EXPECT_EQ(expect_module<torch::nn::BatchNorm2d>(8), 4);
  EXPECT_EQ(expect_module<torch::nn::LSTM>(torch::nn::LSTMOptions(8, 16).num_layers(2)), 8);
  EXPECT_EQ(expect_module<torch::nn::MultiheadAttention>(torch::nn::MultiheadAttentionOptions(16, 4)), 4);
  EXPECT_EQ(expect_module<torch::nn::TransformerEncoderLayer>(torch::nn::TransformerEncoderLayerOptions(16, 4)), 12);
}

TEST(DeferredValues, AreMadeByWhateverWritesThemInPlace) {
  EXPECT_EQ(expect_plain_values([] {
              const torch::NoGradGuard no_grad;
              Tensors all;
              for (int i = 0; i < 3; ++i) all.push_back(torch::nn::Linear(9, 7)->weight);
              for (at::Tensor& weight : all) weight.normal_(0, 0.02);  // anew, after all are there
              all[0].mul_(0.5).add_(1);
              all[1].slice(0, 0, 4).uniform_(-1, 1);                                 // a part
              all[1].slice(0, 2, 6).normal_();                                       // which overlaps the other
              all[2].t().select(0, 3).fill_(2);                                      // through views
              all.push_back(torch::empty({40}).uniform_().erfinv_().clamp_(-2, 2));  // a truncated normal
              all.push_back(torch::full({5}, 3.0).div_(torch::tensor({1.0, 2.0, 3.0, 4.0, 5.0})));
              all.push_back(torch::randn({6, 4}).t());
              all.push_back(torch::empty({2, 3, 4, 5}, at::MemoryFormat::ChannelsLast).normal_());
              return all;
            }),
            7);
}

TEST(DeferredValues, OfSeveralViewsOfOneStorageAreMadeTogether) {
  EXPECT_EQ(expect_plain_values([] {
              const at::Tensor flat = torch::empty({100});
              Tensors all = {flat.narrow(0, 0, 30), flat.narrow(0, 30, 70).view({7, 10})};
              for (at::Tensor& one : all) one.normal_();
              return all;
            }),
            2);
}

TEST(DeferredValues, MayComeFromAnotherTensorAsItWasThen) {
  EXPECT_EQ(expect_plain_values([] {
              const torch::NoGradGuard no_grad;
              at::Tensor source = torch::randn({6}), copy = torch::empty({6}), small = torch::ones({6});
              copy.copy_(source).add_(small);
              source.zero_();
              small.fill_(9);
              const at::Tensor cast = source.to(at::kBFloat16), twin = copy.clone();
              source.add_(1);
              return Tensors{source, copy, small, cast, twin};
            }),
            5);
}

TEST(DeferredValues, ThatAreReadAreMadeAtOnceAndTheReaderIsKnown) {
  EXPECT_EQ(expect_plain_values([] {
              const at::Tensor first = torch::randn({6, 6}), mask = torch::ones({6, 6}).tril();
              const at::Tensor orthogonal = torch::nn::init::orthogonal_(torch::empty({4, 4}));
              return Tensors{first,
                             mask,
                             orthogonal,
                             torch::randn({5}),
                             torch::dropout(torch::randn({9}), 0.5, true),
                             first * first.sum().item<float>()};
            }),
            2);

  DeferredValues values(1);
  at::Tensor read, unread;
  {
    const DeferredValues::Scope scope(values);
    read = torch::ones({3});
    unread = torch::ones({3});
    EXPECT_EQ(read.sum().item<float>(), 3);
  }
  EXPECT_EQ(values.reader(read), "aten::sum");
  EXPECT_EQ(values.reader(unread), "");
  EXPECT_FALSE(values.has(read));
  EXPECT_TRUE(values.has(unread));
}

TEST(DeferredValues, FollowTheGeneratorWhereverItIsPut) {
  expect_plain_values([] {
    at::Tensor first = torch::randn({20});
    torch::manual_seed(3);
    at::Tensor second = torch::randn({20}), numbers = torch::randperm(10), third = torch::rand({20});
    auto own = at::detail::createCPUGenerator(5);
    at::Tensor fourth = torch::empty({20}).normal_(0, 1, own), fifth = torch::empty({20}).uniform_(0, 1, own);
    return Tensors{first, second, numbers, third, fourth, fifth};
  });
}

TEST(DeferredValues, LeaveSmallTensorsAndIntegersAlone) {
  DeferredValues values(100);
  const DeferredValues::Scope scope(values);
  EXPECT_TRUE(values.has(torch::empty({100})));
  for (const at::Tensor& tensor : {torch::ones({99}), torch::ones({200}, at::kLong), torch::ones({0})}) {
    EXPECT_FALSE(values.has(tensor));
    EXPECT_TRUE(tensor.eq(1).all().item<bool>());
  }
}

TEST(DeferredValues, LeaveAutogradsRulesAsTheyAre) {
  DeferredValues values(1);
  const DeferredValues::Scope scope(values);
  at::Tensor leaf = torch::ones({3}, at::requires_grad());
  EXPECT_THROW(leaf.mul_(2), c10::Error);
  at::Tensor doubled = torch::ones({3});
  doubled.mul_(leaf);
  EXPECT_TRUE(doubled.requires_grad());
}

TEST(DeferredValues, RefuseCodeThatTakesTheirMemory) {
  DeferredValues values(1);
  const DeferredValues::Scope scope(values);
  const at::Tensor tensor = torch::randn({3});
  try {
    tensor.data_ptr<float>();
    ADD_FAILURE() << "gave memory";
  } catch (const std::exception& error) {
    EXPECT_TRUE(DeferredValues::is_refusal(error.what())) << error.what();
  }
}

TEST(DeferredValues, NameTheOperatorThatFailsLater) {
  DeferredValues values(1);
  at::Tensor tensor;
  {
    const DeferredValues::Scope scope(values);
    tensor = torch::empty({3});
    tensor.copy_(torch::ones({4}));
  }
  EXPECT_THAT([&] { values.make([](const c10::Storage&) { return false; }); },
              testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("operator aten::copy_: ")));
}

/// The most memory that this process has had, in MiB, since the last call of forget_peak().
std::int64_t peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) / 1024;
  }
  return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

TEST(DeferredValues, TakeTheMemoryOfOneTensorAtATime) {
  torch::manual_seed(1);
  forget_peak();
  const std::int64_t before = peak_mib();
  DeferredValues values;
  std::vector<torch::nn::Linear> layers;
  {
    const DeferredValues::Scope scope(values);
    for (int i = 0; i < 16; ++i) layers.emplace_back(torch::nn::LinearOptions(2048, 2048));  // 16 MiB each
  }
  int made = 0;
  values.make([&](const c10::Storage&) {
    ++made;
    return true;
  });
  EXPECT_EQ(made, 16);
  EXPECT_LT(peak_mib() - before, 64);  // the values take 256; sanitizers need some
}

}  // namespace
}  // namespace capstan
