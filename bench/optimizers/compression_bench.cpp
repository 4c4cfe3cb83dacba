// Error-feedback sign compression of one buffer on the CPU, beside the same in LibTorch operators, and beside what the
// machine can copy. All take turns in one process on the same tensors. Prints medians and ratios.
//
//   compression_bench [elements, default 33554432] [repeats, default 9] [threads, default 1 and all]

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/host_kernels.hpp"
#include "plugins/optimizers/onebit/units.hpp"

namespace {

using namespace capstan::optimizers;

/// Two passes: 12 bytes an element, then 8 and a bit.
constexpr double kBytes = 12 + 8 + 1.0 / 8, kCopyBytes = 8;

void compress(const at::Tensor& values, const at::Tensor& error, const at::Tensor& signs) {
  auto* kept = error.mutable_data_ptr<float>();
  auto* bits = signs.mutable_data_ptr<std::uint8_t>();
  const auto count = static_cast<std::size_t>(values.numel());
  static const std::unique_ptr<Kernels> kernels = host_kernels();
  double squares = 0;
  kernels->add_gradient({values.data_ptr(), ElementType::kFloat32}, 1.0f, kept, count, &squares);
  const auto scale = static_cast<float>(std::sqrt(squares / static_cast<double>(count)));
  for_units(count, [&](std::size_t begin, std::size_t end) {
    compress_signs(kept + begin, end - begin, scale, bits + begin / 8);
  });
}

/// The same in operators, the errors in place where they can be.
void compress_with_operators(const at::Tensor& values, at::Tensor& error, at::Tensor& signs, const at::Tensor& places) {
  error.add_(values);
  const double scale = error.norm().item<double>() / std::sqrt(static_cast<double>(values.numel()));
  const at::Tensor positive = error.ge(0);
  signs = positive.view({-1, 8}).to(at::kByte).mul(places).sum(1, false, at::kByte);
  error.sub_(positive.to(at::kFloat).mul_(2).sub_(1).mul_(scale));
}

/// As DeepSpeed's collective has it, operator by operator, and shifts where it leaves the packing to CuPy.
void compress_as_published(const at::Tensor& values, at::Tensor& error, at::Tensor& signs, const at::Tensor& shifts) {
  at::Tensor buffer = values.add(error);
  const at::Tensor scale = buffer.norm().div(std::sqrt(static_cast<double>(values.numel())));
  error = buffer.sub(buffer.sign().add_(1).to(at::kBool).to(at::kFloat).add_(-0.5).mul_(2.0).mul(scale));
  const at::Tensor positive = buffer.sign_().add_(1).to(at::kBool);
  signs = positive.view({-1, 8}).to(at::kByte).bitwise_left_shift(shifts).sum(1, false, at::kByte);
}

void copy(const at::Tensor& from, const at::Tensor& to) {
  const auto* source = from.const_data_ptr<float>();
  auto* target = to.mutable_data_ptr<float>();
  for_units(static_cast<std::size_t>(from.numel()), [&](std::size_t begin, std::size_t end) {
    std::memcpy(target + begin, source + begin, (end - begin) * sizeof(float));
  });
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(std::int64_t elements, int repeats, int threads) {
  at::set_num_threads(threads);
  const at::Tensor values = at::randn({elements});
  at::Tensor error = at::zeros_like(values), torch_error = at::zeros_like(values),
             published_error = at::zeros_like(values), target = at::zeros_like(values);
  at::Tensor signs = at::empty({elements / 8}, at::kByte), torch_signs, published_signs;
  const at::Tensor places = at::tensor(at::ArrayRef<std::uint8_t>({128, 64, 32, 16, 8, 4, 2, 1}));
  const at::Tensor shifts = at::tensor(at::ArrayRef<std::uint8_t>({7, 6, 5, 4, 3, 2, 1, 0}));
  const std::vector<std::function<void()>> contenders = {
      [&] { compress(values, error, signs); },
      [&] { compress_with_operators(values, torch_error, torch_signs, places); },
      [&] { compress_as_published(values, published_error, published_signs, shifts); }, [&] { copy(values, target); }};
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int i = 0; i <= repeats; ++i) {
    for (std::size_t k = 0; k < contenders.size(); ++k) {
      const auto begin = std::chrono::steady_clock::now();
      contenders[k]();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (i > 0) seconds[k].push_back(elapsed.count());
    }
    if (i == 0 && !(signs.equal(torch_signs) && signs.equal(published_signs))) {
      std::fprintf(stderr, "the signs differ\n");
      std::exit(1);
    }
  }
  const double ours = median(seconds[0]), operators = median(seconds[1]), published = median(seconds[2]),
               copied = median(seconds[3]);
  const double n = static_cast<double>(elements);
  std::printf("%lld elements, %d thread%s\n", static_cast<long long>(elements), threads, threads == 1 ? "" : "s");
  std::printf("  compression         %8.2f ms  %6.2f GB/s  %5.2f of copying\n", ours * 1e3, kBytes * n / ours / 1e9,
              kBytes * n / ours / (kCopyBytes * n / copied));
  std::printf("  LibTorch operators  %8.2f ms  %.1f times as long\n", operators * 1e3, operators / ours);
  std::printf("  as DeepSpeed has it %8.2f ms  %.1f times as long\n", published * 1e3, published / ours);
  std::printf("  copying             %8.2f ms  %6.2f GB/s\n", copied * 1e3, kCopyBytes * n / copied / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  const std::int64_t elements = argc > 1 ? std::atoll(argv[1]) / 64 * 64 : 1 << 25;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 9;
  if (argc > 3) {
    run(elements, repeats, std::atoi(argv[3]));
  } else {
    const int all = at::get_num_threads();
    run(elements, repeats, 1);
    if (all > 1) run(elements, repeats, all);
  }
}
