// Error-feedback sign compression, and what goes with it, on a GPU, beside what the device can copy. All take turns on
// the same memory. Prints medians, bytes read and written over time, and the fraction of a copy's.
//
//   cuda_compression_bench [elements, default 134217728] [repeats, default 21]

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "plugins/optimizers/onebit/cuda_kernels.hpp"

namespace {

using namespace capstan::optimizers;

struct Contender {
  const char* name;
  double bytes;  // read and written, an element
  std::function<void()> run;
  std::vector<double> seconds = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(std::int64_t elements, int repeats) {
  const auto kernels = cuda_kernels([] { return nullptr; });
  const auto count = static_cast<std::size_t>(elements);
  const at::Device gpu(at::kCUDA, 0);
  const auto floats = [&] { return at::randn({elements}).to(gpu); };
  const at::Tensor grad = floats(), m = floats(), v = floats().abs(), p = floats(),
                   error = at::zeros({elements}).to(gpu), target = floats(),
                   squares = at::zeros({1}, at::kDouble).to(gpu);
  const at::Tensor message = at::zeros({elements / 8 + 4}, at::kByte).to(gpu);
  const auto of = [](const at::Tensor& tensor) { return tensor.data_ptr<float>(); };
  auto* signs = message.data_ptr<std::uint8_t>();
  auto* sum = squares.data_ptr<double>();
  const Moments moments(1, 0, 0.9, 0.999);
  const DeviceValues gradient{grad.data_ptr()};
  const std::vector<OutgoingShare> share = {{of(error), count, count, sum, count, signs, signs + count / 8}};
  const std::vector<ArrivedShare> arrived = {{signs, signs + count / 8, count / 8 + 4, 1, of(target), count, sum}};
  std::vector<Contender> contenders = {
      {"copying", 8, [&] { target.copy_(p); }},
      {"compression: momentum, error, signs", 16 + 8 + 1.0 / 8,
       [&] {
         kernels->zero(sum, sizeof(double));
         kernels->add_blended(moments, of(m), gradient, 1, of(error), count, sum);
         kernels->compress(share);
       }},
      {"  of it, momentum into error", 16,
       [&] { kernels->add_blended(moments, of(m), gradient, 1, of(error), count, sum); }},
      {"  of it, signs and what they miss", 8 + 1.0 / 8, [&] { kernels->compress(share); }},
      {"serving one rank's share", 8 + 1.0 / 8, [&] { kernels->serve(arrived); }},
      {"expanding signs", 4 + 1.0 / 8,
       [&] {
         kernels->expand({signs, signs + count / 8, count / 8 + 4, count}, 0, count, of(target));
       }},
      {"step with a frozen second moment", 16, [&] {
         kernels->frozen_step({1e-3f, 1e-8f, 0.01f}, of(m), of(v), of(p), count);
       }}};
  const auto wait = [&] {
    double value;
    kernels->download(sum, sizeof value, &value);
  };
  for (int i = 0; i <= repeats; ++i) {
    for (Contender& contender : contenders) {
      wait();
      const auto begin = std::chrono::steady_clock::now();
      contender.run();
      wait();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (i > 0) contender.seconds.push_back(elapsed.count());
    }
  }
  const double copied = contenders[0].bytes / median(contenders[0].seconds);
  std::printf("%lld elements\n", static_cast<long long>(elements));
  for (const Contender& contender : contenders) {
    const double seconds = median(contender.seconds), rate = contender.bytes / seconds;
    std::printf("  %-36s %8.3f ms  %7.1f GB/s  %5.2f of copying\n", contender.name, seconds * 1e3,
                rate * static_cast<double>(elements) / 1e9, rate / copied);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // The accelerator's plugin brings LibTorch's operators for the device.
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).find_last_of('/') + 1);
  if (!dlopen((folder + "../lib/capstan/plugins/accelerators/libcapstan_accelerator_cuda.so").c_str(),
              RTLD_NOW | RTLD_GLOBAL)) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
    run(argc > 1 ? std::atoll(argv[1]) / 64 * 64 : 1 << 27, argc > 2 ? std::atoi(argv[2]) : 21);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
