#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "capstan/sdk/on_cpu/block_runner.hpp"
#include "capstan/sdk/on_cpu/emulated_device.hpp"

// CUDA's cuda_runtime.h for kernels that run on a CPU, started by capstan::sdk::launch(): as much of it as kernels of
// elements, sums and tiles need. Meant for tests: one thread at a time, and what follows from the hardware (speed,
// coalescing, the last bit of expf) is not shown. Anything else of CUDA's does not compile.
#define CAPSTAN_ON_CPU 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
// Blocks follow one another, so one copy serves them all. As on a GPU it is not cleared between blocks. An alignment
// stands before it, `alignas(double) __shared__ char bytes[8]`, which nvcc takes too.
#define __shared__ static thread_local

using cudaStream_t = void*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};

namespace capstan::sdk::kernels_on_cpu {

inline thread_local cudaError_t last_error = cudaSuccess;

/// Work on the device's memory, between whose begin and end the host may touch the memory: the emulated device, where
/// there is one, checks its order as a kernel's.
class DeviceWork {
 public:
  explicit DeviceWork(const char* name) : device_(EmulatedDevice::get()) {
    if (device_.kernel_begin) device_.kernel_begin(name);
  }
  ~DeviceWork() {
    if (device_.kernel_end) device_.kernel_end();
  }
  DeviceWork(const DeviceWork&) = delete;

 private:
  const EmulatedDevice& device_;
};

/// Returns the value that lane `from` of the warp gives in this operation.
template <class T>
T shuffled(std::string_view operation, const SourceLine& at, unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>,
                "a shuffle moves a number of at most 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = BlockRunner::of_this_thread().exchange(operation, at, mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace capstan::sdk::kernels_on_cpu

// Inside kernels. The file and the line of a call are found by themselves; a call gives the other arguments alone.

/// All threads of a block that have not returned must come to the same call; else the process ends with a sentence.
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  capstan::sdk::kernels_on_cpu::BlockRunner::of_this_thread().wait_for_block({file, line});
}

/// Shuffles among the lanes in `mask`, in groups of `width` lanes, a power of 2. A lane that takes no part gives bytes
/// of 0xff, which is a NaN.
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const int own = capstan::sdk::kernels_on_cpu::BlockRunner::of_this_thread().lane();
  const int from = (own & -width) | (lane & (width - 1));
  return capstan::sdk::kernels_on_cpu::shuffled("__shfl_sync", {file, line}, mask, value, from);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const int own = capstan::sdk::kernels_on_cpu::BlockRunner::of_this_thread().lane();
  const int from = own + static_cast<int>(delta);
  const bool inside = delta < static_cast<unsigned>(width) && from < (own & -width) + width;
  return capstan::sdk::kernels_on_cpu::shuffled("__shfl_down_sync", {file, line}, mask, value, inside ? from : own);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const int own = capstan::sdk::kernels_on_cpu::BlockRunner::of_this_thread().lane();
  const int from = own ^ lanes;
  const bool inside = from >= 0 && from < (own & -width) + width;
  return capstan::sdk::kernels_on_cpu::shuffled("__shfl_xor_sync", {file, line}, mask, value, inside ? from : own);
}

/// Returns what was there before. Threads of the host that launch at the same time may add to one number.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*at).fetch_add(value, std::memory_order_relaxed);
}

/// Of numbers; of a NaN and a number the number, as in CUDA.
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = a, y = b;
  return x < y || y != y ? x : y;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = a, y = b;
  return x > y || y != y ? x : y;
}

// On the host. A launch and a copy are over when the call returns, whatever the stream.

/// Returns the last error of this thread and forgets it.
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = capstan::sdk::kernels_on_cpu::last_error;
  capstan::sdk::kernels_on_cpu::last_error = cudaSuccess;
  return error;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
  }
  return "unrecognized error code";
}

/// Memory of the emulated device where there is one, else of the host; with values that nobody has set.
template <class T>
cudaError_t cudaMalloc(T** out, std::size_t bytes) {
  const auto& device = capstan::sdk::kernels_on_cpu::EmulatedDevice::get();
  *out = static_cast<T*>(device.allocate ? device.allocate(bytes) : std::malloc(bytes));
  if (*out || bytes == 0) return cudaSuccess;
  return capstan::sdk::kernels_on_cpu::last_error = cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* memory) {
  const auto& device = capstan::sdk::kernels_on_cpu::EmulatedDevice::get();
  // Memory that was allocated before the device was loaded is the host's.
  const bool of_device = device.release && (!device.host_view || device.host_view(memory));
  if (of_device) {
    device.release(memory);
  } else {
    std::free(memory);
  }
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  const capstan::sdk::kernels_on_cpu::DeviceWork work("cudaMemcpyAsync");
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  const capstan::sdk::kernels_on_cpu::DeviceWork work("cudaMemsetAsync");
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto& device = capstan::sdk::kernels_on_cpu::EmulatedDevice::get();
  if (device.synchronize) device.synchronize(stream);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
