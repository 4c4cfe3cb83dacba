// The stand-ins for CUDA's headers where kernels run on a CPU: numbers of 16 bits, memory, and the emulated device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "capstan/sdk/launch.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;

/// A format of 16 bits: a sign, an exponent, `kFraction` bits of fraction.
template <int kFraction>
struct Format {
  static constexpr int kBias = (1 << (14 - kFraction)) - 1;
  static constexpr int kMost = (1 << (15 - kFraction)) - 1;  // the exponent of infinities and NaN

  /// Its value, by definition; a NaN is any NaN.
  static double value(unsigned bits) {
    const int exponent = static_cast<int>(bits >> kFraction) & kMost;
    const int fraction = static_cast<int>(bits & ((1u << kFraction) - 1));
    const double sign = bits >> 15 != 0 ? -1 : 1;
    if (exponent == kMost) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - kBias - kFraction);
    return sign * std::ldexp((1 << kFraction) + fraction, exponent - kBias - kFraction);
  }
};

/// Holds both conversions against the definition: each value of 16 bits, the middle between it and the next one, and
/// the numbers of float32 around that.
template <int kFraction, class Widen, class Round>
void expect_nearest_even(Widen widen, Round round) {
  using Of = Format<kFraction>;
  const unsigned infinity = static_cast<unsigned>(Of::kMost) << kFraction;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double value = Of::value(bits);
    const float wide = widen(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_EQ(round(wide), 0x7fff);
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), value) << bits;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000);
    ASSERT_EQ(round(wide), bits);
    if ((bits & 0x7fff) == infinity) continue;
    // Beyond the greatest number the distance goes on as if there were a next one.
    const double next = ((bits + 1) & 0x7fff) == infinity ? 2 * value - Of::value(bits - 1) : Of::value(bits + 1);
    const auto middle = static_cast<float>((value + next) / 2);
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(round(middle), even) << bits;
    ASSERT_EQ(round(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(round(std::nextafter(middle, std::copysign(std::numeric_limits<float>::infinity(), middle))), bits + 1);
  }
}

TEST(OnCpu, Bfloat16IsRoundedToTheNearestAndTiesToEven) {
  expect_nearest_even<7>([](std::uint16_t bits) { return __bfloat162float({bits}); },
                         [](float value) { return __float2bfloat16_rn(value).bits; });
  EXPECT_EQ(__float2bfloat16(1.0f).bits, 0x3f80);
}

TEST(OnCpu, Float16IsRoundedToTheNearestAndTiesToEven) {
  expect_nearest_even<10>([](std::uint16_t bits) { return __half2float({bits}); },
                          [](float value) { return __float2half_rn(value).bits; });
  EXPECT_EQ(__float2half(1.0f).bits, 0x3c00);
}

TEST(OnCpu, CopiesAndFillsMemory) {
  int* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4 * sizeof(int)), cudaSuccess);
  const std::vector<int> from = {1, 2, 3, 4};
  std::vector<int> to(4);
  EXPECT_EQ(cudaMemcpy(memory, from.data(), 4 * sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory + 1, 0xff, 2 * sizeof(int), nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(to.data(), memory, 4 * sizeof(int), cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_THAT(to, ElementsAre(1, -1, -1, 4));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(OnCpu, SaysThatMemoryIsOut) {
  char* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, std::size_t{1} << 62), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

__global__ void add_one(int* number) { ++*number; }

/// Last of all, because the library stays loaded.
TEST(OnCpuLast, UsesAnEmulatedDeviceOnceOneIsLoaded) {
  void* before = nullptr;
  ASSERT_EQ(cudaMalloc(&before, 16), cudaSuccess);
  void* library = dlopen(CAPSTAN_TEST_EMULATED_DEVICE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto calls = reinterpret_cast<const char* (*)()>(dlsym(library, "calls"));

  int* number = nullptr;
  int host = 4;
  ASSERT_EQ(cudaMalloc(&number, sizeof host), cudaSuccess);
  cudaMemcpy(number, &host, sizeof host, cudaMemcpyHostToDevice);
  sdk::launch(add_one, 1, 1, nullptr)(number);
  cudaMemcpy(&host, number, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(number);
  cudaFree(before);

  EXPECT_EQ(host, 5);
  EXPECT_THAT(calls(),
              ::testing::MatchesRegex("allocate 4, begin cudaMemcpyAsync, end, synchronize, "
                                      "begin on_cpu_test.cpp:[0-9]+, end, begin cudaMemcpyAsync, end, synchronize, "
                                      "release, "));
}

}  // namespace
}  // namespace capstan::testing
