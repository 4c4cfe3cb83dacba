// Signum (Bernstein et al. 2018): m = b*m + (1-b)*g;  w -= lr * (sign(m) + decay*w).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <capstan/sdk/launch.hpp>
#include <cstdint>

#include "signum_kernel.hpp"

namespace signum {
namespace {

constexpr int kThreads = 256;

__device__ float widened(float value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }

template <class Gradient>
__global__ void update(float* weights, float* means, const Gradient* gradients, std::int64_t count, Numbers numbers) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const float gradient = widened(gradients[i]) * numbers.grad_scale;
  means[i] = numbers.momentum * means[i] + (1.0f - numbers.momentum) * gradient;
  const float sign = static_cast<float>(means[i] > 0.0f) - static_cast<float>(means[i] < 0.0f);
  weights[i] -= numbers.lr * (sign + numbers.weight_decay * weights[i]);
}

template <class Gradient>
void start(float* weights, float* means, const void* gradients, std::size_t count, const Numbers& numbers,
           cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  capstan::sdk::launch(update<Gradient>, blocks, kThreads, stream)(
      weights, means, static_cast<const Gradient*>(gradients), static_cast<std::int64_t>(count), numbers);
}

}  // namespace

const char* launch(float* weights, float* means, const void* gradients, GradientType type, std::size_t count,
                   const Numbers& numbers, void* stream) {
  if (count == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  switch (type) {
    case GradientType::kFloat32:
      start<float>(weights, means, gradients, count, numbers, on);
      break;
    case GradientType::kBFloat16:
      start<__nv_bfloat16>(weights, means, gradients, count, numbers, on);
      break;
    case GradientType::kFloat16:
      start<__half>(weights, means, gradients, count, numbers, on);
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace signum
