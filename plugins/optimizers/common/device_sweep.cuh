#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "plugins/optimizers/common/device_block.hpp"

// One pass of a GPU over a slot: each thread widens an element of gradient and states to float32, applies the rule,
// rounds what it changed.
namespace capstan::optimizers {

__device__ inline float widened(const DeviceValues& values, std::int64_t i) {
  switch (values.type) {
    case ElementType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(values.data)[i]);
    case ElementType::kFloat16:
      return __half2float(static_cast<const __half*>(values.data)[i]);
    default:
      return static_cast<const float*>(values.data)[i];
  }
}

__device__ inline void put(const DeviceValues& values, std::int64_t i, float value) {
  switch (values.type) {
    case ElementType::kBFloat16:
      static_cast<__nv_bfloat16*>(values.data)[i] = __float2bfloat16_rn(value);
      return;
    case ElementType::kFloat16:
      static_cast<__half*>(values.data)[i] = __float2half_rn(value);
      return;
    default:
      static_cast<float*>(values.data)[i] = value;
  }
}

template <int kStates, class Rule>
__global__ void sweep_kernel(DeviceBlock block, Rule rule) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       i < static_cast<std::int64_t>(block.count); i += stride) {
    float param = block.param[i];
    float state[kStates > 0 ? kStates : 1];
    for (int s = 0; s < kStates; ++s) state[s] = widened(block.state[s], i);
    rule(param, widened(block.grad, i), state);
    block.param[i] = param;
    for (int s = 0; s < kStates; ++s) put(block.state[s], i, state[s]);
    if (block.copy.data) put(block.copy, i, param);
  }
}

/// Puts the update of a slot into its stream. `rule(param, gradient, states)` changes param and states. Null, or why
/// the launch failed.
template <int kStates, class Rule>
const char* sweep(const DeviceBlock& block, const Rule& rule) {
  constexpr int kThreads = 256;
  constexpr std::size_t kMostBlocks = 4096;  // more would only wait for their turn
  if (block.count == 0) return nullptr;
  const std::size_t blocks = (block.count + kThreads - 1) / kThreads;
  sweep_kernel<kStates><<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
                          static_cast<cudaStream_t>(block.stream)>>>(block, rule);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace capstan::optimizers
