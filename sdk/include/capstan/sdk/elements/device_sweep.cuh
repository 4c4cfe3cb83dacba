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
constexpr int kSweepEach = 4;  // elements that a thread reads before it waits for the first

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

/// Elements [begin, end) of a slot, which a block of threads takes.
struct SweepChunk {
  std::size_t slot;
  std::int64_t begin, end;
};

/// The calling thread's.
template <class Rule>
__device__ inline SweepChunk chunk_of(const SweepList<Rule>& list) {
  std::size_t slot = 0;
  while (list.first[slot + 1] <= blockIdx.x) ++slot;
  constexpr auto kChunk = static_cast<std::int64_t>(kSweepChunk);
  const std::int64_t begin = (blockIdx.x - list.first[slot]) * kChunk;
  const auto count = static_cast<std::int64_t>(list.blocks[slot].count);
  return {slot, begin, count - begin < kChunk ? count : begin + kChunk};
}

/// The calling thread's elements of a chunk: body(i, params, grads, states) for kSweepEach of them, of which the first
/// is element i of the slot. states[s] are kSweepEach elements of state s.
template <int kStates, class Body>
__device__ inline void read_chunk(const DeviceBlock& block, const SweepChunk& chunk, const Body& body) {
  for (std::int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += kSweepThreads * kSweepEach) {
    float params[kSweepEach], grads[kSweepEach], states[kStates > 0 ? kStates : 1][kSweepEach];
    read_each(DeviceValues{block.param}, i, chunk.end, params);
    read_each(block.grad, i, chunk.end, grads);
#pragma unroll
    for (int s = 0; s < kStates; ++s) read_each(block.state[s], i, chunk.end, states[s]);
    body(i, params, grads, states);
  }
}

template <class Rule>
__global__ void sweep_kernel(const __grid_constant__ SweepList<Rule> list) {
  constexpr int kStates = Rule::kStates;
  const SweepChunk chunk = chunk_of(list);
  const DeviceBlock& block = list.blocks[chunk.slot];
  read_chunk<kStates>(block, chunk, [&](std::int64_t i, float* params, const float* grads, auto& states) {
#pragma unroll
    for (int k = 0; k < kSweepEach; ++k) {
      float state[kStates > 0 ? kStates : 1];
      for (int s = 0; s < kStates; ++s) state[s] = states[s][k];
      list.rules[chunk.slot](params[k], grads[k], state);
      for (int s = 0; s < kStates; ++s) states[s][k] = state[s];
    }
    put_each(DeviceValues{block.param}, i, chunk.end, params);
#pragma unroll
    for (int s = 0; s < kStates; ++s) put_each(block.state[s], i, chunk.end, states[s]);
    if (block.copy.data) put_each(block.copy, i, chunk.end, params);
  });
}

/// launch(list) for as many lists as hold the updates. Null, or why a launch failed.
template <class Rule, class Launch>
const char* launch_lists(const std::vector<DeviceUpdate<Rule>>& updates, const Launch& launch) {
  static_assert(sizeof(SweepList<Rule>) <= SweepList<Rule>::kBytes);
  auto update = updates.begin();
  while (update != updates.end()) {
    SweepList<Rule> list;
    list.first[0] = 0;
    for (; update != updates.end() && list.slots < list.kMost; ++update) {
      if (update->block.count == 0) continue;
      list.blocks[list.slots] = update->block;
      list.rules[list.slots] = update->rule;
      list.first[list.slots + 1] = list.first[list.slots] + static_cast<unsigned>(chunks_of(update->block.count));
      ++list.slots;
    }
    if (list.slots == 0) break;
    launch(list);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  return nullptr;
}

/// Puts updates into a stream, a cudaStream_t. A rule is called with (param, gradient, states) and changes param and
/// states. Null, or why a launch failed.
template <class Rule>
const char* sweep(const std::vector<DeviceUpdate<Rule>>& updates, void* stream) {
  return launch_lists<Rule>(updates, [&](const SweepList<Rule>& list) {
    sdk::launch(sweep_kernel<Rule>, list.first[list.slots], kSweepThreads, static_cast<cudaStream_t>(stream))(list);
  });
}

}  // namespace capstan::elements
