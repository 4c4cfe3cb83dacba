// Copies through pinned memory, on the emulated device, which closes pinned memory until somebody waits for its copies.

#include "core/memory/pinned_copies.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "capstan/sdk/on_cpu/emulated_device.hpp"
#include "tests/sdk/emulated/face.hpp"

namespace capstan::test {
namespace {

std::uint64_t waits() { return sdk::kernels_on_cpu::EmulatedDevice::get().waits(); }

/// Tensors of several dtypes and shapes: none, one element, more than a half, strided.
std::vector<torch::Tensor> mixed() {
  torch::manual_seed(5);
  std::vector<torch::Tensor> made = {torch::randn({3, 7}),
                                     torch::randn({}),
                                     torch::empty({0}),
                                     torch::randn({1000}).to(torch::kBFloat16),
                                     torch::randint(255, {333}, torch::kByte),
                                     torch::randn({5000}),
                                     torch::arange(700),
                                     torch::randn({40, 30}).t()};
  return made;
}

void expect_copied(std::int64_t half_bytes) {
  const auto values = mixed();
  std::vector<torch::Tensor> there;
  for (const auto& tensor : values) there.push_back(tensor.to(device()));
  PinnedCopies copies(device(), half_bytes);
  for (int round = 0; round < 2; ++round) {
    const auto copied = copies.to_host(there);
    ASSERT_EQ(copied.size(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(copied[i].is_cpu());
      EXPECT_TRUE(copied[i].is_contiguous());
      EXPECT_EQ(copied[i].scalar_type(), values[i].scalar_type());
      EXPECT_TRUE(copied[i].equal(values[i])) << "tensor " << i << ", round " << round;
    }
    there[0].mul_(2);  // the copies keep their values
    values[0].mul_(2);
  }
}

TEST(PinnedCopies, KeepTheValuesOfTensorsThatFillManyHalvesOrPartOfOne) {
  for (const std::int64_t half_bytes : {64, 1024, 4096, 1 << 20}) expect_copied(half_bytes);
}

TEST(PinnedCopies, WaitOnceForManySmallTensors) {
  std::vector<torch::Tensor> there;
  for (int i = 0; i < 100; ++i) there.push_back(torch::full({10}, i, device()));
  PinnedCopies copies(device(), 1 << 20);
  const std::uint64_t before = waits();
  const auto copied = copies.to_host(there);
  EXPECT_EQ(waits() - before, 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(copied[static_cast<std::size_t>(i)][9].item<int>(), i);
}

TEST(PinnedCopies, AreMadeWithoutPinnedMemoryWhereTheSystemRefusesIt) {
  setenv("CAPSTAN_EMULATED_PINNED_MB", "1", 1);
  PinnedCopies copies(device(), 8 << 20);
  const auto values = torch::arange(10, device());
  testing::internal::CaptureStderr();
  EXPECT_TRUE(copies.to_host({values})[0].equal(torch::arange(10)));
  EXPECT_TRUE(copies.to_host({values})[0].equal(torch::arange(10)));
  const std::string text = testing::internal::GetCapturedStderr();
  unsetenv("CAPSTAN_EMULATED_PINNED_MB");
  const std::string sentence = "no pinned memory of 16777216 B for copies from";
  EXPECT_NE(text.find(sentence), std::string::npos) << text;
  EXPECT_EQ(text.find(sentence), text.rfind(sentence)) << "printed twice: " << text;
}

}  // namespace
}  // namespace capstan::test
