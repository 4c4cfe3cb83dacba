#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <vector>

#include "capstan/sdk/elements/device_block.hpp"
#include "capstan/sdk/launch.hpp"

// One pass of a GPU over many slots: each thread widens elements of gradient and states to float32, applies the rule,
// rounds what it changed. A launch takes as many slots as its arguments hold, because launching them one by one takes
// the host longer than most of them take the device.
namespace capstan::elements {

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

constexpr std::int64_t kSweepThreads = 256;
constexpr std::int64_t kSweepChunk = 16384;  // elements that a block of threads updates
constexpr int kSweepEach = 4;                // elements that a thread reads before it waits for the first

/// Element k of out is element i + k * kSweepThreads of values, if it is before end.
template <class Element, class Widen>
__device__ inline void read_each(const void* values, std::int64_t i, std::int64_t end, float* out, Widen widen) {
  Element read[kSweepEach] = {};
#pragma unroll
  for (int k = 0; k < kSweepEach; ++k) {
    if (i + k * kSweepThreads < end) read[k] = static_cast<const Element*>(values)[i + k * kSweepThreads];
  }
#pragma unroll
  for (int k = 0; k < kSweepEach; ++k) out[k] = widen(read[k]);
}

__device__ inline void read_each(const DeviceValues& values, std::int64_t i, std::int64_t end, float* out) {
  switch (values.type) {
    case ElementType::kBFloat16:
      return read_each<__nv_bfloat16>(values.data, i, end, out, [](auto value) { return __bfloat162float(value); });
    case ElementType::kFloat16:
      return read_each<__half>(values.data, i, end, out, [](auto value) { return __half2float(value); });
    default:
      return read_each<float>(values.data, i, end, out, [](float value) { return value; });
  }
}

__device__ inline void put_each(const DeviceValues& values, std::int64_t i, std::int64_t end, const float* from) {
#pragma unroll
  for (int k = 0; k < kSweepEach; ++k) {
    if (i + k * kSweepThreads < end) put(values, i + k * kSweepThreads, from[k]);
  }
}

/// The arguments of a launch.
template <class Rule>
struct SweepList {
  static constexpr std::size_t kBytes = 4096;  // of arguments, on every device
  static constexpr std::size_t kMost =
      (kBytes - sizeof(std::size_t) - sizeof(unsigned)) / (sizeof(DeviceBlock) + sizeof(Rule) + sizeof(unsigned));

  DeviceBlock blocks[kMost];
  Rule rules[kMost];
  unsigned first[kMost + 1];  // blocks of threads before each slot's; the last: all of them
  std::size_t slots = 0;
};

template <int kStates, class Rule>
__global__ void sweep_kernel(const __grid_constant__ SweepList<Rule> list) {
  std::size_t slot = 0;
  while (list.first[slot + 1] <= blockIdx.x) ++slot;
  const DeviceBlock& block = list.blocks[slot];
  const std::int64_t begin = (blockIdx.x - list.first[slot]) * kSweepChunk;
  const auto count = static_cast<std::int64_t>(block.count);
  const std::int64_t end = count - begin < kSweepChunk ? count : begin + kSweepChunk;
  const DeviceValues params{block.param};
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kSweepThreads * kSweepEach) {
    float param[kSweepEach], grad[kSweepEach], states[kStates > 0 ? kStates : 1][kSweepEach];
    read_each(params, i, end, param);
    read_each(block.grad, i, end, grad);
#pragma unroll
    for (int s = 0; s < kStates; ++s) read_each(block.state[s], i, end, states[s]);
#pragma unroll
    for (int k = 0; k < kSweepEach; ++k) {
      float state[kStates > 0 ? kStates : 1];
      for (int s = 0; s < kStates; ++s) state[s] = states[s][k];
      list.rules[slot](param[k], grad[k], state);
      for (int s = 0; s < kStates; ++s) states[s][k] = state[s];
    }
    put_each(params, i, end, param);
#pragma unroll
    for (int s = 0; s < kStates; ++s) put_each(block.state[s], i, end, states[s]);
    if (block.copy.data) put_each(block.copy, i, end, param);
  }
}

/// Puts updates into a stream, a cudaStream_t. A Rule{numbers} is called with (param, gradient, states) and changes
/// param and states. Null, or why a launch failed.
template <int kStates, class Rule, class Numbers>
const char* sweep(const std::vector<DeviceUpdate<Numbers>>& updates, void* stream) {
  static_assert(sizeof(SweepList<Rule>) <= SweepList<Rule>::kBytes);
  auto update = updates.begin();
  while (update != updates.end()) {
    SweepList<Rule> list;
    list.first[0] = 0;
    for (; update != updates.end() && list.slots < list.kMost; ++update) {
      if (update->block.count == 0) continue;
      list.blocks[list.slots] = update->block;
      list.rules[list.slots] = Rule{update->numbers};
      const auto chunks = (static_cast<std::int64_t>(update->block.count) + kSweepChunk - 1) / kSweepChunk;
      list.first[list.slots + 1] = list.first[list.slots] + static_cast<unsigned>(chunks);
      ++list.slots;
    }
    if (list.slots == 0) break;
    sdk::launch(sweep_kernel<kStates, Rule>, list.first[list.slots], kSweepThreads,
                static_cast<cudaStream_t>(stream))(list);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  return nullptr;
}

}  // namespace capstan::elements
