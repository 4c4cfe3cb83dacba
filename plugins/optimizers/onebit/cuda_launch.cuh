#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "capstan/sdk/elements/device_sweep.cuh"
#include "capstan/sdk/launch.hpp"
#include "plugins/optimizers/onebit/fixed_order.hpp"

// Rules applied by a GPU: see rule_kernels.hpp.
namespace capstan::optimizers {

inline void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status) + ".");
}

/// Device memory that grows as needed. What was in it is lost.
class CudaScratch {
 public:
  CudaScratch() = default;
  CudaScratch(const CudaScratch&) = delete;
  ~CudaScratch() { cudaFree(data_); }

  void* reserve(std::size_t bytes) {
    if (bytes <= size_) return data_;
    cudaFree(data_);  // waits for kernels that use it
    data_ = nullptr;
    size_ = 0;
    check_cuda(cudaMalloc(&data_, 2 * bytes));
    size_ = 2 * bytes;
    return data_;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Several items' indices cut into units: unit first[k] is the first of item k, first[items] is past the last.
struct UnitTable {
  const std::size_t* first;
  const std::size_t* counts;
  std::size_t items;

  /// The item of a unit.
  __device__ std::size_t item_of(std::size_t unit) const {
    std::size_t low = 0, high = items;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      if (first[middle] <= unit) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

/// The threads' sums of a block, folded; the result is for thread 0.
template <class Sum>
__device__ Sum sum_of_block(const Sum& own) {
  alignas(Sum) __shared__ unsigned char memory[kSumThreads * sizeof(Sum)];
  auto* sums = reinterpret_cast<Sum*>(memory);
  sums[threadIdx.x] = own;
  for (std::size_t width = kSumThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    fold(sums, threadIdx.x, width);
  }
  __syncthreads();
  const Sum sum = sums[0];
  __syncthreads();  // before the next one is made
  return sum;
}

template <class Body>
__global__ void each_kernel(std::size_t count, Body body) {
  const auto stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count; i += stride) body(i);
}

template <class Body>
__global__ void each_of_kernel(UnitTable table, Body body) {
  for (std::size_t unit = blockIdx.x; unit < table.first[table.items]; unit += gridDim.x) {
    const std::size_t item = table.item_of(unit);
    const std::size_t begin = (unit - table.first[item]) * kSumUnit;
    const std::size_t end = min(begin + kSumUnit, table.counts[item]);
    for (std::size_t i = begin + threadIdx.x; i < end; i += kSumThreads) body(item, i);
  }
}

template <class Sum, class Body>
__global__ void sums_kernel(std::size_t count, Body body, Sum* sums) {
  for (std::size_t unit = blockIdx.x; unit < units_of(count); unit += gridDim.x) {
    const std::size_t begin = unit * kSumUnit, end = min(begin + kSumUnit, count);
    const Sum sum = sum_of_block(sum_of_thread<Sum>(begin, end, threadIdx.x, body));
    if (threadIdx.x == 0) sums[unit] = sum;
  }
}

template <class Body>
__global__ void sums_of_kernel(UnitTable table, Body body, Total* sums) {
  for (std::size_t unit = blockIdx.x; unit < table.first[table.items]; unit += gridDim.x) {
    const std::size_t item = table.item_of(unit);
    const std::size_t begin = (unit - table.first[item]) * kSumUnit;
    const std::size_t end = min(begin + kSumUnit, table.counts[item]);
    const Total sum = sum_of_block(
        sum_of_thread<Total>(begin, end, threadIdx.x, [&](std::size_t i, Total& sum) { body(item, i, sum); }));
    if (threadIdx.x == 0) sums[unit] = sum;
  }
}

struct AddTo {
  double* out;
  __device__ void operator()(const Total& total) const { *out += total.value; }
};

struct PutTo {
  LayerSums* out;
  __device__ void operator()(const LayerSums& total) const { *out = total; }
};

/// One block.
template <class Sum, class Put>
__global__ void finish_kernel(std::size_t units, const Sum* sums, Put put) {
  const Sum sum = sum_of_block(
      sum_of_thread<Sum>(0, units, threadIdx.x, [&](std::size_t unit, auto& sum) { sum.add(sums[unit]); }));
  if (threadIdx.x == 0) put(sum);
}

/// One block an item.
template <class Body>
__global__ void finish_of_kernel(UnitTable table, const Total* sums, Body body) {
  const std::size_t item = blockIdx.x;
  const Total sum = sum_of_block(sum_of_thread<Total>(table.first[item], table.first[item + 1], threadIdx.x,
                                                      [&](std::size_t unit, auto& sum) { sum.add(sums[unit]); }));
  if (threadIdx.x == 0) body.put_total(item, sum);
}

/// An element of arrays, for rules of steps.
struct ElementAt {
  using Value = float;
  std::size_t i;
  __device__ float operator()(const float* array) const { return array[i]; }
  __device__ float operator()(const DeviceValues& values) const {
    return widened(values, static_cast<std::int64_t>(i));
  }
  __device__ void put(float* array, float value) const { array[i] = value; }
};

/// A rule as a body of indices.
template <class Rule>
struct RuleAt {
  Rule rule;
  __device__ void operator()(std::size_t i) const { rule(ElementAt{i}); }
  template <class Sum>
  __device__ void operator()(std::size_t i, Sum& sum) const {
    rule(ElementAt{i}, sum);
  }
};

/// A rule whose sum nobody asks for.
template <class Rule>
struct UnaskedRuleAt {
  Rule rule;
  __device__ void operator()(std::size_t i) const {
    Total sum;
    rule(ElementAt{i}, sum);
  }
};

/// On the stream that `stream` tells.
class CudaLaunch {
 public:
  explicit CudaLaunch(std::function<void*()> stream) : stream_(std::move(stream)) {}

  template <class Rule>
  void each(std::size_t count, const Rule& rule) {
    each_index(count, RuleAt<Rule>{rule});
  }

  template <class Body>
  void each_index(std::size_t count, const Body& body) {
    if (count == 0) return;
    sdk::launch(each_kernel<Body>, blocks((count + kSumThreads - 1) / kSumThreads), kSumThreads, stream())(count, body);
    check_cuda(cudaGetLastError());
  }

  template <class Body>
  void each_of(const std::vector<std::size_t>& counts, const Body& body) {
    const auto [table, units] = cut(counts);
    if (units == 0) return;
    sdk::launch(each_of_kernel<Body>, blocks(units), kSumThreads, stream())(table, body);
    check_cuda(cudaGetLastError());
  }

  template <class Rule>
  void add_up(std::size_t count, const Rule& rule, double* out) {
    if (!out) return each_index(count, UnaskedRuleAt<Rule>{rule});
    if (count > 0) total_of_units<Total>(count, RuleAt<Rule>{rule}, AddTo{out});
  }

  template <class Rule>
  void total(std::size_t count, const Rule& rule, LayerSums* out) {
    total_of_units<LayerSums>(count, RuleAt<Rule>{rule}, PutTo{out});
  }

  template <class Body>
  void total_of(const std::vector<std::size_t>& counts, const Body& body) {
    const auto [table, units] = cut(counts);
    auto* sums = static_cast<Total*>(sums_.reserve(units * sizeof(Total)));
    if (units > 0) {
      sdk::launch(sums_of_kernel<Body>, blocks(units), kSumThreads, stream())(table, body, sums);
      check_cuda(cudaGetLastError());
    }
    sdk::launch(finish_of_kernel<Body>, static_cast<unsigned>(counts.size()), kSumThreads, stream())(table, sums, body);
    check_cuda(cudaGetLastError());
  }

  template <class Item>
  const Item* table(const std::vector<Item>& items) {
    return static_cast<const Item*>(put(items_, items.data(), items.size() * sizeof(Item)));
  }
  float* floats(std::size_t count) { return static_cast<float*>(floats_.reserve(count * sizeof(float))); }

  void zero(void* to, std::size_t bytes) {
    if (bytes > 0) check_cuda(cudaMemsetAsync(to, 0, bytes, stream()));
  }
  void upload(const void* host, std::size_t bytes, void* to) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream()));
    check_cuda(cudaStreamSynchronize(stream()));
  }
  void download(const void* from, std::size_t bytes, void* host) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream()));
    check_cuda(cudaStreamSynchronize(stream()));
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_()); }
  /// Loops stride over what is left: more blocks would only wait for their turn.
  static unsigned blocks(std::size_t wanted) {
    constexpr std::size_t kMostBlocks = 8192;
    return static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  }

  template <class Sum, class Body, class Put>
  void total_of_units(std::size_t count, const Body& body, const Put& put) {
    const std::size_t units = units_of(count);
    auto* sums = static_cast<Sum*>(sums_.reserve(units * sizeof(Sum)));
    if (units > 0) {
      sdk::launch(sums_kernel<Sum, Body>, blocks(units), kSumThreads, stream())(count, body, sums);
      check_cuda(cudaGetLastError());
    }
    sdk::launch(finish_kernel<Sum, Put>, 1, kSumThreads, stream())(units, sums, put);
    check_cuda(cudaGetLastError());
  }

  /// A copy of host memory behind what the stream has queued: pageable memory is taken before the call returns.
  const void* put(CudaScratch& scratch, const void* from, std::size_t bytes) {
    void* to = scratch.reserve(bytes);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()));
    return to;
  }

  struct Cut {
    UnitTable table;
    std::size_t units;
  };
  Cut cut(const std::vector<std::size_t>& counts) {
    std::vector<std::size_t> numbers = {0};
    for (const std::size_t count : counts) numbers.push_back(numbers.back() + units_of(count));
    const std::size_t units = numbers.back();
    numbers.insert(numbers.end(), counts.begin(), counts.end());
    const auto* on_device =
        static_cast<const std::size_t*>(put(units_, numbers.data(), numbers.size() * sizeof(std::size_t)));
    return {{on_device, on_device + counts.size() + 1, counts.size()}, units};
  }

  std::function<void*()> stream_;
  CudaScratch sums_, items_, units_, floats_;
};

}  // namespace capstan::optimizers
