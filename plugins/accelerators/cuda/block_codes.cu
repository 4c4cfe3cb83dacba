#include <cmath>

#include "capstan/sdk/launch.hpp"
#include "plugins/accelerators/cuda/block_codes.hpp"

namespace capstan::accelerators {
namespace {

constexpr unsigned kThreads = 128;
constexpr float kSmallest = 1e-36f;

__device__ int code_of(float value, float r, int half) {
  const float level = rintf(value * r);
  return static_cast<int>(fminf(fmaxf(level, static_cast<float>(-half)), static_cast<float>(half - 1)));
}

/// The largest magnitude of a block's elements, and whether all are finite, for all of its threads.
__device__ float magnitude(const float* values, std::int64_t count, bool& finite) {
  __shared__ float largest[kThreads];
  __shared__ int bad[kThreads];
  float mine = 0;
  int mine_bad = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const float value = values[i];
    mine = fmaxf(mine, fabsf(value));  // passes over NaN
    mine_bad |= value * 0.0f == 0.0f ? 0 : 1;
  }
  largest[threadIdx.x] = mine;
  bad[threadIdx.x] = mine_bad;
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) {
      largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + width]);
      bad[threadIdx.x] |= bad[threadIdx.x + width];
    }
  }
  __syncthreads();
  finite = bad[0] == 0;
  return largest[0];
}

/// A block of threads quantises a block of elements.
__global__ void quantize(BlockCodes format, const float* all, float* scales, std::uint8_t* codes) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * format.block;
  const std::int64_t count = format.numel - first < format.block ? format.numel - first : format.block;
  const float* values = all + first;
  const int half = format.bits == 8 ? 128 : 8;
  bool finite = true;
  const float largest = magnitude(values, count, finite);
  const bool usual = finite && largest >= kSmallest;
  const float r = usual ? static_cast<float>(half) / largest : 0.0f;
  if (threadIdx.x == 0) scales[blockIdx.x] = !finite ? NAN : usual ? 1.0f / r : 1.0f;
  const auto code = [&](std::int64_t i) { return usual && i < count ? code_of(values[i], r, half) : 0; };
  if (format.bits == 8) {
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) codes[first + i] = static_cast<std::uint8_t>(code(i));
    return;
  }
  for (std::int64_t pair = threadIdx.x; 2 * pair < count; pair += kThreads) {
    codes[first / 2 + pair] = static_cast<std::uint8_t>((code(2 * pair) & 15) | (code(2 * pair + 1) & 15) << 4);
  }
}

__global__ void dequantize(BlockCodes format, const float* scales, const std::uint8_t* codes, bool add, float* values) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= format.numel) return;
  const int code =
      format.bits == 8 ? static_cast<std::int8_t>(codes[at]) : ((codes[at / 2] >> (at % 2 * 4) & 15) ^ 8) - 8;
  const float value = static_cast<float>(code) * scales[at / format.block];
  values[at] = add ? values[at] + value : value;
}

unsigned blocks_of(std::int64_t items, std::int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

const char* started() {
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

const char* quantize_blocks(const BlockCodes& format, const float* values, float* scales, std::uint8_t* codes,
                            void* stream) {
  sdk::launch(quantize, dim3(blocks_of(format.numel, format.block)), dim3(kThreads), static_cast<cudaStream_t>(stream))(
      format, values, scales, codes);
  return started();
}

const char* dequantize_blocks(const BlockCodes& format, const float* scales, const std::uint8_t* codes, bool add,
                              float* values, void* stream) {
  sdk::launch(dequantize, dim3(blocks_of(format.numel, kThreads)), dim3(kThreads), static_cast<cudaStream_t>(stream))(
      format, scales, codes, add, values);
  return started();
}

}  // namespace capstan::accelerators
