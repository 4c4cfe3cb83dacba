#include "tests/plugins/optimizers/kernel_agreement.hpp"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "plugins/optimizers/onebit/host_kernels.hpp"
#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

using namespace optimizers;

constexpr std::size_t kLengths[] = {0, 1, 7, 8, 9, 63, 64, 65, 2047, 2049, 4096, 16385, 50'003};

const AdaptiveNumbers kNumbers{.moments = Moments(0.7, 0, 0.9, 0.99), .rates = {0.01f, 1e-6f, 0.1f}};

/// The same arrays on each device, odd ones for second moments.
class Arrays {
 public:
  Arrays(std::size_t count, std::uint64_t seed, at::Device device) : count_(count) {
    for (std::size_t k = 0; k < arrays_.size(); ++k) {
      at::Tensor values = noise(static_cast<std::int64_t>(count + 1), seed + k);
      if (k % 2 == 1) values = values.mul(values);
      arrays_[k] = values.to(device, values.scalar_type(), false, /*copy=*/true);
    }
  }
  float* operator[](std::size_t k) { return arrays_[k].data_ptr<float>() + 1; }
  std::size_t count() const { return count_; }
  /// Values of an array from `begin` on, on the host; any NaN is the same NaN.
  std::vector<float> values(std::size_t k) const {
    const at::Tensor host = arrays_[k].cpu();
    std::vector<float> values(host.data_ptr<float>(), host.data_ptr<float>() + host.numel());
    for (float& value : values) value = std::isnan(value) ? std::nanf("") : value;
    return values;
  }
  std::size_t size() const { return arrays_.size(); }

 private:
  std::size_t count_;
  std::array<at::Tensor, 7> arrays_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Given {
  Kernels& k;
  Arrays& a;
  DeviceValues gradient;
  double* squares;
  LayerSums* sums;
};
using Call = std::function<void(const Given&)>;

struct Outcome {
  Arrays arrays;
  double squares;
  LayerSums sums;
};

Outcome outcome(Kernels& kernels, at::Device device, std::size_t count, at::ScalarType type, const Call& call) {
  const at::Tensor grad = noise(static_cast<std::int64_t>(count), 99).to(type).to(device);
  const at::Tensor sums = at::full({5}, 0.0, at::kDouble).to(device);
  const auto kind = type == at::kFloat      ? ElementType::kFloat32
                    : type == at::kBFloat16 ? ElementType::kBFloat16
                                            : ElementType::kFloat16;
  auto* numbers = sums.data_ptr<double>();
  Outcome out{Arrays(count, 1, device), 3, {}};
  kernels.upload(&out.squares, sizeof out.squares, numbers);
  call({kernels, out.arrays, {grad.data_ptr(), kind}, numbers, reinterpret_cast<LayerSums*>(numbers + 1)});
  kernels.download(numbers, sizeof out.squares, &out.squares);
  kernels.download(numbers + 1, sizeof out.sums, &out.sums);
  return out;
}

void expect_agreement(Kernels& kernels, at::Device device, const char* what, const Call& call) {
  const std::unique_ptr<Kernels> host = host_kernels();
  for (const std::size_t count : kLengths) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Outcome there = outcome(kernels, device, count, type, call);
      const Outcome here = outcome(*host, at::kCPU, count, type, call);
      for (std::size_t k = 0; k < here.arrays.size(); ++k) {
        ASSERT_TRUE(same_bits(there.arrays.values(k), here.arrays.values(k)))
            << what << ", array " << k << " of " << count << ", " << type;
      }
      EXPECT_NEAR(there.squares, here.squares, 1e-13 * here.squares) << what;
      EXPECT_NEAR(there.sums.weights, here.sums.weights, 1e-13 * here.sums.weights) << what;
      EXPECT_NEAR(there.sums.gradients, here.sums.gradients, 1e-13 * here.sums.gradients) << what;
      EXPECT_NEAR(there.sums.directions, here.sums.directions, 1e-13 * here.sums.directions) << what;
      EXPECT_EQ(there.sums.factor, here.sums.factor) << what;
    }
  }
}

/// What an exchange of two buffers over three ranks sends, what it keeps, and what is read out of it.
struct Exchanged {
  std::vector<std::uint8_t> messages;
  std::vector<float> kept, served;
  std::vector<std::vector<float>> read;

  bool operator==(const Exchanged& other) const {
    bool same = messages == other.messages && same_bits(kept, other.kept) && same_bits(served, other.served);
    for (std::size_t i = 0; i < read.size(); ++i) same = same && same_bits(read[i], other.read[i]);
    return same;
  }
};

Exchanged exchanged(Kernels& kernels, at::Device device, std::size_t count, float spoiled) {
  constexpr std::size_t kRanks = 3;
  const std::size_t padded = (count + 23) / 24 * 8;
  const std::size_t stride = 2 * padded / 8 + 2 * sizeof(float) + 1;  // no boundary for the scales
  Arrays arrays(2 * kRanks * padded, 5, device);
  const at::Tensor bytes = at::full({static_cast<std::int64_t>(kRanks * stride)}, 0xaa, at::kByte).to(device);
  const at::Tensor sums = at::full({4}, 0.0, at::kDouble).to(device);
  auto* messages = bytes.data_ptr<std::uint8_t>();
  auto* squares = sums.data_ptr<double>();
  if (count > 0 && spoiled != 0) kernels.fill(arrays[0] + count / 2, 1, spoiled);
  std::vector<OutgoingShare> shares;
  std::vector<ArrivedShare> arrived;
  for (std::size_t buffer = 0; buffer < 2; ++buffer) {
    float* begin = arrays[0] + buffer * count;
    const std::size_t signs = buffer * padded / 8, scale = 2 * padded / 8 + buffer * sizeof(float);
    kernels.measure(begin, count, squares + buffer);
    for (std::size_t to = 0; to < kRanks; ++to) {
      const std::size_t before = to * padded;
      std::uint8_t* message = messages + to * stride;
      shares.push_back({begin + before, count > before ? std::min(padded, count - before) : 0, padded, squares + buffer,
                        count, message + signs, message + scale});
    }
    arrived.push_back({messages + signs, messages + scale, stride, kRanks, arrays[2] + buffer * padded,
                       std::min(padded, count), squares + 2 + buffer});
  }
  kernels.compress(shares);
  kernels.serve(arrived);
  Exchanged out;
  const ArrivedBuffer buffer{messages, messages + 2 * padded / 8, stride, padded};
  for (std::size_t from = 0; from < std::min<std::size_t>(count, 20); ++from) {
    kernels.fill(arrays[4], count, 7);
    kernels.expand(buffer, from, count - from, arrays[4]);
    out.read.push_back(arrays.values(4));
  }
  out.kept = arrays.values(0);
  out.served = arrays.values(2);
  out.messages.resize(kRanks * stride);
  kernels.download(messages, out.messages.size(), out.messages.data());
  for (std::size_t to = 0; to < kRanks; ++to) {  // here too any NaN is the same NaN
    for (std::size_t buffer = 0; buffer < 2; ++buffer) {
      std::uint8_t* at = out.messages.data() + to * stride + 2 * padded / 8 + buffer * sizeof(float);
      float scale = 0;
      std::memcpy(&scale, at, sizeof scale);
      if (std::isnan(scale)) scale = std::nanf("");
      std::memcpy(at, &scale, sizeof scale);
    }
  }
  return out;
}

}  // namespace

bool cpu_fuses() {
#ifdef __x86_64__
  return __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

void expect_steps_of_the_cpu(Kernels& kernels, c10::Device device) {
  const auto expect = [&](const char* what, const Call& call) { expect_agreement(kernels, device, what, call); };
  expect("blend", [](const Given& g) { g.k.blend(kNumbers.moments, g.gradient, g.a[0], g.a.count()); });
  expect("frozen_step", [](const Given& g) { g.k.frozen_step(kNumbers.rates, g.a[0], g.a[1], g.a[2], g.a.count()); });
  expect("blend_and_step",
         [](const Given& g) { g.k.blend_and_step(kNumbers, g.a[0], g.a[1], g.a[2], g.a[4], g.a.count()); });
  expect("local_step", [](const Given& g) {
    g.k.local_step(kNumbers, g.gradient, g.a[0], g.a[1], g.a[2], g.a[4], g.a[6], g.a.count());
  });
  expect("join_step",
         [](const Given& g) { g.k.join_step(1e-6f, 0.37f, g.a[1], g.a[0], g.a[2], g.a[4], g.a[6], g.a.count()); });
}

void expect_measures_of_the_cpu(Kernels& kernels, c10::Device device) {
  const auto expect = [&](const char* what, const Call& call) { expect_agreement(kernels, device, what, call); };
  expect("measure", [](const Given& g) { g.k.measure(g.a[0], g.a.count(), g.squares); });
  expect("add_gradient", [](const Given& g) {
    g.k.add_gradient(g.gradient, 0.7f, g.a[0], g.a.count(), g.squares);
    g.k.add_gradient(g.gradient, 0.3f, g.a[2], g.a.count(), nullptr);
  });
  expect("add_blended", [](const Given& g) {
    g.k.add_blended(kNumbers.moments, g.a[0], g.gradient, 1.3f, g.a[2], g.a.count(), g.squares);
  });
  expect("add_preconditioned",
         [](const Given& g) { g.k.add_preconditioned(1e-6f, g.a[0], g.a[1], g.a[2], g.a.count(), g.squares); });
  expect("blend_and_measure", [](const Given& g) {
    g.k.blend_and_measure(kNumbers, g.gradient, g.a[0], g.a[2], g.a[1], g.a.count(), g.sums);
  });
  expect("refresh_and_measure", [](const Given& g) {
    g.k.refresh_and_measure(kNumbers, 1.3f, g.a[0], g.a[2], g.a[1], g.a[4], g.a[3], g.a.count(), g.sums);
  });
}

void expect_memory_of_the_cpu(Kernels& kernels, c10::Device device) {
  expect_agreement(kernels, device, "memory", [&](const Given& g) {
    const std::size_t count = g.a.count();
    g.k.copy(g.a[0], count, g.a[2]);
    g.k.fill(g.a[4], count, 0.25f);
    g.k.widen(g.gradient, count, g.a[6]);
    g.k.divide(g.a[6], 3.0f, count, g.a[6]);
    g.k.zero(g.a[1], count / 2 * sizeof(float));
    std::vector<float> host(count);
    g.k.download(g.a[3], count * sizeof(float), host.data());
    g.k.upload(host.data(), count * sizeof(float), g.a[5]);
    // A mask of rows, in the memory of the fourth array.
    const std::size_t rows = count / 28;
    std::vector<std::uint8_t> keep(rows);
    for (std::size_t i = 0; i < rows; ++i) keep[i] = i % 3 != 1;
    g.k.upload(keep.data(), rows, g.a[3]);
    g.k.mask(reinterpret_cast<const std::uint8_t*>(g.a[3]), 28, 28 * rows, g.a[0]);
  });
}

void expect_compression_of_the_cpu(Kernels& kernels, c10::Device device) {
  const std::unique_ptr<Kernels> host = host_kernels();
  for (const float spoiled : {0.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const std::size_t count : kLengths) {
      EXPECT_TRUE(exchanged(kernels, device, count, spoiled) == exchanged(*host, at::kCPU, count, spoiled))
          << count << " elements, spoiled by " << spoiled;
    }
  }
}

}  // namespace capstan::testing
