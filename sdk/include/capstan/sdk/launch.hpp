#pragma once

#include <cuda_runtime.h>

#ifndef __CUDACC__
#ifndef CAPSTAN_ON_CPU
#error \
    "capstan/sdk/launch.hpp needs nvcc, or capstan/sdk/on_cpu first on the include path: see capstan_run_kernels_on_cpu()"
#endif
#include <cstdio>
#include <string>
#include <tuple>
#endif

/// Starting kernels in a way that every compiler takes, so that a .cu file is a test on machines without a GPU.
namespace capstan::sdk {

/// A kernel that waits for its arguments: see launch().
template <class... Parameters>
class Launch {
 public:
  using Kernel = void (*)(Parameters...);

#ifdef __CUDACC__
  Launch(Kernel kernel, dim3 blocks, dim3 threads, cudaStream_t stream)
      : kernel_(kernel), blocks_(blocks), threads_(threads), stream_(stream) {}

  void operator()(const Parameters&... arguments) const {
    if (blocks_.x == 0 || blocks_.y == 0 || blocks_.z == 0) return;
    kernel_<<<blocks_, threads_, 0, stream_>>>(arguments...);
  }
#else
  Launch(Kernel kernel, dim3 blocks, dim3 threads, const kernels_on_cpu::SourceLine& at)
      : kernel_(kernel), blocks_(blocks), threads_(threads), at_(at) {}

  void operator()(const Parameters&... arguments) const {
    if (blocks_.x == 0 || blocks_.y == 0 || blocks_.z == 0 || !is_valid()) return;
    std::tuple<Kernel, const Parameters&...> call(kernel_, arguments...);
    // Each thread has copies of its own, as on a GPU.
    const auto one_thread = [](void* context) {
      std::apply([](Kernel kernel, const Parameters&... values) { kernel(values...); },
                 *static_cast<decltype(call)*>(context));
    };
    const std::string name = at_.text();
    const kernels_on_cpu::DeviceWork work(name.c_str());
    kernels_on_cpu::BlockRunner::of_this_thread().run(blocks_, threads_, one_thread, &call, at_);
  }
#endif

 private:
#ifndef __CUDACC__
  /// Whether a GPU would take it; else says why not, and leaves the error for cudaGetLastError().
  bool is_valid() const {
    constexpr unsigned kMostThreads = 1024, kMostThreadsZ = 64, kMostBlocksYZ = 65535;
    const std::size_t threads = std::size_t{threads_.x} * threads_.y * threads_.z;
    const bool few_blocks = blocks_.x <= 0x7fffffffu && blocks_.y <= kMostBlocksYZ && blocks_.z <= kMostBlocksYZ;
    if (few_blocks && threads > 0 && threads <= kMostThreads && threads_.z <= kMostThreadsZ) return true;
    std::fprintf(stderr,
                 "capstan: the launch at %s asks for (%u, %u, %u) blocks of (%u, %u, %u) threads; CUDA takes at most "
                 "(2147483647, 65535, 65535) blocks of 1 to 1024 threads, of which z counts at most 64.\n",
                 at_.text().c_str(), blocks_.x, blocks_.y, blocks_.z, threads_.x, threads_.y, threads_.z);
    kernels_on_cpu::last_error = cudaErrorInvalidConfiguration;
    return false;
  }
#endif

  Kernel kernel_;
  dim3 blocks_, threads_;
#ifdef __CUDACC__
  cudaStream_t stream_;
#else
  kernels_on_cpu::SourceLine at_;
#endif
};

/// launch(kernel, blocks, threads, stream)(arguments...) puts a kernel into a stream, as CUDA's
/// kernel<<<blocks, threads, 0, stream>>>(arguments...) does; of a template, all arguments are named: sums<float, 256>.
/// cudaGetLastError() tells whether it started. Without blocks nothing runs, which is not an error. Safe from several
/// threads.
///
/// Not compiled by nvcc, it runs the kernel on the CPU, by the headers of capstan/sdk/on_cpu, and returns when all of
/// it has run. Meant for tests: CAPSTAN_LAUNCH_ORDER=forwards, backwards or scattered gives the order of a block's
/// threads, and a kernel that lacks a barrier has different results in at least one of them. A block whose threads wait
/// at different barriers ends the process, with a sentence that names the block, the barriers and how many wait at
/// each.
#ifdef __CUDACC__
template <class... Parameters>
Launch<Parameters...> launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, cudaStream_t stream) {
  return {kernel, blocks, threads, stream};
}
#else
template <class... Parameters>
Launch<Parameters...> launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, cudaStream_t,
                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {kernel, blocks, threads, {file, line}};
}
#endif

}  // namespace capstan::sdk
