#include "capstan/sdk/tensors.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::sdk {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

capstan_tensor handle(const at::Tensor& tensor) {
  return reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&tensor));
}

Tensors list(const std::vector<at::Tensor>& tensors) {
  Tensors made;
  for (const at::Tensor& tensor : tensors) made.push_back(detail::held(handle(tensor)));
  return made;
}

std::vector<float> values(const torch::stable::Tensor& tensor) {
  const at::Tensor& view = *reinterpret_cast<at::Tensor*>(tensor.get());
  const at::Tensor all = view.contiguous();
  const float* data = all.const_data_ptr<float>();
  return {data, data + all.numel()};
}

std::vector<float> values(const at::Tensor& tensor) { return values(detail::held(handle(tensor))); }

/// Two lists of two tensors each, of 3 and of 2 elements.
class TwoLists : public ::testing::Test {
 protected:
  const at::Tensor x0_ = at::tensor({1.0f, 4.0f, 9.0f}), x1_ = at::tensor({2.0f, 8.0f});
  const at::Tensor y0_ = at::tensor({2.0f, -2.0f, 4.0f}), y1_ = at::tensor({0.5f, 16.0f});
  Tensors x_ = list({x0_, x1_});
  const Tensors y_ = list({y0_, y1_});

  void expect(const std::vector<float>& first, const std::vector<float>& second) {
    EXPECT_EQ(values(x0_), first);
    EXPECT_EQ(values(x1_), second);
  }
};

TEST_F(TwoLists, TakeANumberForAllOrOneForEach) {
  x_.mul_(2.0);
  expect({2, 8, 18}, {4, 16});
  x_.add_(std::vector<double>{1, -1});
  expect({3, 9, 19}, {3, 15});
  x_.clamp_min_(std::vector<double>{10, 4});
  expect({10, 10, 19}, {4, 15});
}

TEST_F(TwoLists, AddWithAFactorOfEachTensor) {
  x_.add_(y_, std::vector<double>{0.5, -2});
  expect({2, 3, 11}, {1, -24});
  x_.add_(y_);
  expect({4, 1, 15}, {1.5f, -8});
}

TEST_F(TwoLists, InterpolateWithAWeightOfEachTensor) {
  x_.lerp_(y_, std::vector<double>{0.25, 1});
  expect({1.25f, 2.5f, 7.75f}, {0.5f, 16});
}

TEST_F(TwoLists, AddProductsAndQuotients) {
  x_.addcmul_(y_, y_, std::vector<double>{1, 2});
  expect({5, 8, 25}, {2.5f, 520});
  x_.addcdiv_(list({y0_, y1_}), list({y0_, y1_}), -1.0);
  expect({4, 7, 24}, {1.5f, 519});
}

TEST_F(TwoLists, MultiplyDivideAndTakeRoots) {
  x_.mul_(y_).div_(y_).sqrt_();
  expect({1, 2, 3}, {std::sqrt(2.0f), std::sqrt(8.0f)});
  x_.maximum_(y_).neg_().sign_();
  expect({-1, -1, -1}, {-1, -1});
  x_.abs_();
  expect({1, 1, 1}, {1, 1});
  x_.zero_();
  expect({0, 0, 0}, {0, 0});
}

TEST_F(TwoLists, AreWrittenAloneWhereTheyAreCopies) {
  const Tensors roots = x_.sqrt();
  x_.clone().zero_();
  expect({1, 4, 9}, {2, 8});
  EXPECT_EQ(values(roots[0]), (std::vector<float>{1, 2, 3}));
}

TEST_F(TwoLists, HaveANormEach) {
  const Tensors norms = x_.norm();
  ASSERT_EQ(norms.size(), 2u);
  EXPECT_EQ(norms[0].dim(), 0);
  EXPECT_FLOAT_EQ(values(norms[0])[0], std::sqrt(98.0f));
  x_.div_(norms);  // a tensor of no dimension goes beside one of any shape
  EXPECT_FLOAT_EQ(values(x1_)[1], 8 / std::sqrt(68.0f));
}

TEST_F(TwoLists, WithoutTensorsChangeNothing) {
  Tensors none;
  none.mul_(3.0).add_(Tensors()).addcmul_(Tensors(), Tensors()).sqrt_();
  EXPECT_TRUE(none.norm().empty());
  EXPECT_TRUE(none.matmul(none).empty());
}

TEST_F(TwoLists, SayWhatDoesNotFit) {
  EXPECT_THAT(
      [&] {
        x_.mul_(std::vector<double>{1, 2, 3});
      },
      ThrowsMessage<Error>("a list of 2 tensors takes one number, or one a tensor; it got 3."));
  EXPECT_THAT([&] { x_.add_(list({y0_})); }, ThrowsMessage<Error>("add_: lists of 2 and of 1 tensors."));
  EXPECT_THAT(
      [&] {
        x_.lerp_(list({y1_, y0_}), 0.5);
      },
      ThrowsMessage<Error>("lerp_: the tensors 0 of the two lists have 3 and 2 elements."));
  const at::Tensor elsewhere = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(
      [&] {
        x_.copy_(list({y0_, elsewhere}));
      },
      ThrowsMessage<Error>("copy_: the tensors 1 of the two lists are on different devices."));
  EXPECT_THAT([&] { x_.view({{3}}); }, ThrowsMessage<Error>("view: 2 tensors and 1 shapes."));
  EXPECT_THAT(
      [&] {
        x_.matmul(list({y1_, y1_}));
      },
      ThrowsMessage<std::exception>(HasSubstr("failed")));  // LibTorch's own sentence stands in standard error
  expect({1, 4, 9}, {2, 8});
}

TEST(TensorLists, MultiplyMatrices) {
  const at::Tensor flat = at::arange(6, at::kFloat);
  const Tensors matrix = list({flat}).view({{2, 3}});
  const Tensors gram = matrix.matmul(matrix.transposed());
  EXPECT_EQ(values(gram[0]), (std::vector<float>{5, 14, 14, 50}));
  gram.diagonal().add_(1.0);
  EXPECT_EQ(values(gram[0]), (std::vector<float>{6, 14, 14, 51}));
}

/// A slot with a gradient and a state of 16 bits.
class SlotOf16Bits : public ::testing::Test {
 protected:
  const at::Tensor weights_ = at::full({2}, 1.0), gradient_ = at::full({2}, 3.0, at::kBFloat16),
                   average_ = at::full({2}, 0.5, at::kBFloat16);
  const capstan_tensor states_[1] = {handle(average_)};
  const capstan_slot raw_ = [this] {
    capstan_slot raw{};
    raw.struct_size = sizeof raw;
    raw.name = {"w", 1};
    raw.numel = 2;
    raw.param = handle(weights_);
    raw.grad = handle(gradient_);
    raw.state = states_;
    raw.state_count = 1;
    return raw;
  }();
};

TEST_F(SlotOf16Bits, IsReadInFloat32AndWrittenBack) {
  const TensorSlots slots(std::vector<Slot>{Slot(&raw_, "Lists")});
  const Tensors gradients = slots.gradients(0.5);
  EXPECT_EQ(values(gradients[0]), (std::vector<float>{1.5f, 1.5f}));
  Tensors average = slots.state(0);
  average.lerp_(gradients, 0.5);
  EXPECT_EQ(values(average_.to(at::kFloat)), (std::vector<float>{0.5f, 0.5f}));
  slots.store_state(0, average);
  EXPECT_EQ(values(average_.to(at::kFloat)), (std::vector<float>{1, 1}));
  slots.parameters().add_(average, -0.25);
  EXPECT_EQ(values(weights_), (std::vector<float>{0.75f, 0.75f}));
  EXPECT_EQ(values(gradient_.to(at::kFloat)), (std::vector<float>{3, 3}));
}

TEST_F(SlotOf16Bits, OfFloat32IsNotCopied) {
  const at::Tensor gradient = at::full({2}, 3.0);
  capstan_slot raw = raw_;
  const capstan_tensor state = handle(weights_);
  raw.grad = handle(gradient);
  raw.state = &state;
  const TensorSlots slots(std::vector<Slot>{Slot(&raw, "Lists")});
  slots.state(0).mul_(2.0);
  EXPECT_EQ(values(weights_), (std::vector<float>{2, 2}));
  slots.gradients(1.0).mul_(2.0);  // gradients are new tensors
  EXPECT_EQ(values(gradient), (std::vector<float>{3, 3}));
}

}  // namespace
}  // namespace capstan::sdk
