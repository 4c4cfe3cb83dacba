#pragma once

#include "capstan/sdk/elements/device_sweep.cuh"

// Sums that a GPU measures over the elements of many slots. The order of the additions is fixed: a thread adds what its
// elements of a chunk give, the threads' sums of a chunk are folded in halves, and the host adds the chunks in their
// order.
namespace capstan::elements {

/// The sums of a thread.
template <std::size_t kMeasures>
struct ElementSums {
  double values[kMeasures] = {};

  /// Sum k grows by a * b, in double precision.
  __device__ void add(std::size_t k, float a, float b) {
    values[k] = values[k] + static_cast<double>(a) * static_cast<double>(b);
  }
};

/// kMeasures sums for each block of threads.
template <class Rule>
__global__ void measure_kernel(const __grid_constant__ SweepList<Rule> list, double* sums) {
  constexpr std::size_t kMeasures = Rule::kMeasures;
  __shared__ double folded[kMeasures][kSweepThreads];
  const SweepChunk chunk = chunk_of(list);
  const DeviceBlock& block = list.blocks[chunk.slot];
  ElementSums<kMeasures> own;
  read_chunk<Rule::kStates>(block, chunk, [&](std::int64_t i, const float* params, const float* grads, auto& states) {
#pragma unroll
    for (int k = 0; k < kSweepEach; ++k) {
      float state[Rule::kStates > 0 ? Rule::kStates : 1];
      for (int s = 0; s < Rule::kStates; ++s) state[s] = states[s][k];
      if (i + k * kSweepThreads < chunk.end) list.rules[chunk.slot](params[k], grads[k], state, own);
    }
  });
  for (std::size_t k = 0; k < kMeasures; ++k) folded[k][threadIdx.x] = own.values[k];
  for (unsigned width = kSweepThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x >= width) continue;
    for (std::size_t k = 0; k < kMeasures; ++k) {
      folded[k][threadIdx.x] = folded[k][threadIdx.x] + folded[k][threadIdx.x + width];
    }
  }
  if (threadIdx.x != 0) return;
  for (std::size_t k = 0; k < kMeasures; ++k) sums[blockIdx.x * kMeasures + k] = folded[k][0];
}

/// Measures slots by a rule, which is called with (param, gradient, states, sums) and adds to the sums, and waits.
/// `out` gets kMeasures sums an update. `scratch`: memory of the device for kMeasures sums a chunk of all updates.
/// Null, or why it failed.
template <class Rule>
const char* measure(const std::vector<DeviceUpdate<Rule>>& updates, double* scratch, double* out, void* stream) {
  std::size_t chunks = 0;
  const char* fault = launch_lists<Rule>(updates, [&](const SweepList<Rule>& list) {
    const unsigned count = list.first[list.slots];
    sdk::launch(measure_kernel<Rule>, count, kSweepThreads, static_cast<cudaStream_t>(stream))(
        list, scratch + chunks * Rule::kMeasures);
    chunks += count;
  });
  if (fault) return fault;
  std::vector<double> sums(chunks * Rule::kMeasures);
  cudaError_t error = cudaMemcpyAsync(sums.data(), scratch, sums.size() * sizeof(double), cudaMemcpyDeviceToHost,
                                      static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) error = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) return cudaGetErrorString(error);
  auto sum = sums.begin();
  for (const DeviceUpdate<Rule>& update : updates) {
    for (std::size_t k = 0; k < Rule::kMeasures; ++k) out[k] = 0;
    for (std::size_t chunk = 0; chunk < chunks_of(update.block.count); ++chunk) {
      for (std::size_t k = 0; k < Rule::kMeasures; ++k) out[k] += *sum++;
    }
    out += Rule::kMeasures;
  }
  return nullptr;
}

}  // namespace capstan::elements
