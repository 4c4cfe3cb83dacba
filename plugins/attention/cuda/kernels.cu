#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "capstan/sdk/launch.hpp"
#include "plugins/attention/cuda/kernels.hpp"

// Block-sparse attention, flash style (Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4). Four threads share a
// query (a key, in the pass over keys), each with a quarter of its elements; tiles of the other side wait in shared
// memory. Every sum has one owner and a fixed order.
namespace capstan::attention {
namespace {

constexpr int kLanes = 4;
constexpr unsigned kThreads = kTileTokens * kLanes;

template <int kWidth>
constexpr int kStaged = kWidth > 128 ? 16 : 32;  // tokens in shared memory at once

__device__ float element(const DeviceRows& rows, std::int64_t at) {
  switch (rows.dtype) {
    case DeviceDtype::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(rows.data)[at]);
    case DeviceDtype::kFloat16:
      return __half2float(static_cast<const __half*>(rows.data)[at]);
    default:
      return static_cast<const float*>(rows.data)[at];
  }
}
__device__ void put(const DeviceRows& rows, std::int64_t at, float value) {
  switch (rows.dtype) {
    case DeviceDtype::kBFloat16:
      static_cast<__nv_bfloat16*>(rows.data)[at] = __float2bfloat16_rn(value);
      return;
    case DeviceDtype::kFloat16:
      static_cast<__half*>(rows.data)[at] = __float2half_rn(value);
      return;
    default:
      static_cast<float*>(rows.data)[at] = value;
  }
}
__device__ std::int64_t place(const DeviceRows& rows, int batch, int head, int token) {
  return batch * rows.batch_stride + head * rows.head_stride + token * rows.token_stride;
}

/// A thread's quarter of a row: elements lane, lane + 4, ...; 0 beyond its width.
template <int kWidth>
struct Quarter {
  float values[kWidth / kLanes];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) values[i] = 0;
  }
  __device__ void load(const DeviceRows& rows, int batch, int head, int token, int lane) {
    const std::int64_t at = place(rows, batch, head, token);
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) {
      const int e = i * kLanes + lane;
      values[i] = e < rows.width ? element(rows, at + e) : 0;
    }
  }
  __device__ void store(const DeviceRows& rows, int batch, int head, int token, int lane, float factor) const {
    const std::int64_t at = place(rows, batch, head, token);
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) {
      const int e = i * kLanes + lane;
      if (e < rows.width) put(rows, at + e, values[i] * factor);
    }
  }
  /// The product with a staged row, in all four threads.
  __device__ float dot(const float* row, int lane) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) sum += values[i] * row[i * kLanes + lane];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
  __device__ void add(float factor, const float* row, int lane) {
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) values[i] += factor * row[i * kLanes + lane];
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) values[i] *= factor;
  }
};

template <int kWidth>
__device__ void stage(float (*to)[kWidth], const DeviceRows& rows, int batch, int head, int begin, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kWidth; i += kThreads) {
    const int token = i / kWidth, e = i % kWidth;
    to[token][e] = e < rows.width ? element(rows, place(rows, batch, head, begin + token) + e) : 0;
  }
}

/// The score of a query and a key; false where it is left out.
__device__ bool finish_score(const DeviceCall& call, int batch, int head, int query, int key, float& score) {
  score *= call.scale;
  bool there = call.index.joins(query, key);
  for (int i = 0; i < call.term_count; ++i) {
    const DeviceTerm& term = call.terms[i];
    const std::int64_t at =
        batch * term.batch_stride + head * term.head_stride + query * term.query_stride + key * term.key_stride;
    if (term.mask) {
      there = there && static_cast<const bool*>(term.values)[at];
    } else {
      score += static_cast<const float*>(term.values)[at];
    }
  }
  return there && score != -INFINITY;
}

template <int kWidth>
__global__ void forward_kernel(DeviceCall call, DeviceRows out, float* log_sum_exp) {
  __shared__ float keys[kStaged<kWidth>][kWidth], values[kStaged<kWidth>][kWidth];
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const BlockIndex::Tokens tile = call.index.tile(static_cast<int>(blockIdx.x), call.tokens);
  if (tile.begin >= tile.end) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int query = tile.begin + static_cast<int>(threadIdx.x) / kLanes;
  const bool active = query < tile.end;
  Quarter<kWidth> q, sum;
  q.clear();
  sum.clear();
  if (active) q.load(call.q, batch, head, query, lane);
  float maximum = -INFINITY, total = 0;
  for (int c = call.index.first_column(head, tile.of_block); c < call.index.end_column(head, tile.of_block); ++c) {
    const int column = call.index.columns[c], end = call.index.end_token(column, call.tokens);
    for (int begin = call.index.first_token(column); begin < end; begin += kStaged<kWidth>) {
      const int count = min(kStaged<kWidth>, end - begin);
      __syncthreads();
      stage<kWidth>(keys, call.k, batch, head, begin, count);
      stage<kWidth>(values, call.v, batch, head, begin, count);
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        float score = q.dot(keys[i], lane);
        if (!active || !finish_score(call, batch, head, query, begin + i, score)) continue;
        if (score > maximum) {
          const float factor = expf(maximum - score);
          sum.scale(factor);
          total *= factor;
          maximum = score;
        }
        const float p = expf(score - maximum);
        total += p;
        sum.add(p, values[i], lane);
      }
    }
  }
  if (!active) return;
  sum.store(out, batch, head, query, lane, total > 0 ? 1 / total : 0);
  if (lane == 0) {
    log_sum_exp[(static_cast<std::int64_t>(batch) * call.heads + head) * call.tokens + query] =
        total > 0 ? maximum + logf(total) : -INFINITY;
  }
}

/// The gradients of queries, and of terms.
template <int kWidth>
__global__ void query_kernel(DeviceCall call, DeviceGradients gradients) {
  __shared__ float keys[kStaged<kWidth>][kWidth], values[kStaged<kWidth>][kWidth];
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const BlockIndex::Tokens tile = call.index.tile(static_cast<int>(blockIdx.x), call.tokens);
  if (tile.begin >= tile.end) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int query = tile.begin + static_cast<int>(threadIdx.x) / kLanes;
  const bool active = query < tile.end;
  const std::int64_t row = (static_cast<std::int64_t>(batch) * call.heads + head) * call.tokens + query;
  Quarter<kWidth> q, grad, out, sum;
  q.clear();
  grad.clear();
  out.clear();
  sum.clear();
  float log_sum_exp = -INFINITY;
  if (active) {
    q.load(call.q, batch, head, query, lane);
    grad.load(gradients.grad, batch, head, query, lane);
    out.load(gradients.out, batch, head, query, lane);
    log_sum_exp = gradients.log_sum_exp[row];
  }
  float delta = 0;
#pragma unroll
  for (int i = 0; i < kWidth / kLanes; ++i) delta += grad.values[i] * out.values[i];
  delta += __shfl_xor_sync(0xffffffffu, delta, 1);
  delta += __shfl_xor_sync(0xffffffffu, delta, 2);
  for (int c = call.index.first_column(head, tile.of_block); c < call.index.end_column(head, tile.of_block); ++c) {
    const int column = call.index.columns[c], end = call.index.end_token(column, call.tokens);
    for (int begin = call.index.first_token(column); begin < end; begin += kStaged<kWidth>) {
      const int count = min(kStaged<kWidth>, end - begin);
      __syncthreads();
      stage<kWidth>(keys, call.k, batch, head, begin, count);
      stage<kWidth>(values, call.v, batch, head, begin, count);
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        float score = q.dot(keys[i], lane);
        const float of_p = grad.dot(values[i], lane);
        if (!active || !finish_score(call, batch, head, query, begin + i, score)) continue;
        const float of_score = expf(score - log_sum_exp) * (of_p - delta);
        sum.add(of_score, keys[i], lane);
        for (int t = 0; lane == 0 && t < call.term_count; ++t) {
          if (call.terms[t].grad != nullptr) call.terms[t].grad[row * call.tokens + begin + i] = of_score;
        }
      }
    }
  }
  if (active) sum.store(gradients.q, batch, head, query, lane, call.scale);
}

/// The gradients of keys and values.
template <int kWidth>
__global__ void key_kernel(DeviceCall call, DeviceGradients gradients) {
  __shared__ float queries[kStaged<kWidth>][kWidth], grads[kStaged<kWidth>][kWidth];
  __shared__ float deltas[kStaged<kWidth>], log_sum_exps[kStaged<kWidth>];
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const BlockIndex::Tokens tile = call.index.tile(static_cast<int>(blockIdx.x), call.tokens);
  if (tile.begin >= tile.end) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, local = static_cast<int>(threadIdx.x) / kLanes;
  const int key = tile.begin + local;
  const bool active = key < tile.end;
  Quarter<kWidth> k, v, sum_k, sum_v;
  k.clear();
  v.clear();
  sum_k.clear();
  sum_v.clear();
  if (active) {
    k.load(call.k, batch, head, key, lane);
    v.load(call.v, batch, head, key, lane);
  }
  const std::int64_t head_row = (static_cast<std::int64_t>(batch) * call.heads + head) * call.tokens;
  for (int r = call.index.first_row(head, tile.of_block); r < call.index.end_row(head, tile.of_block); ++r) {
    const int row = call.index.rows[r], end = call.index.end_token(row, call.tokens);
    for (int begin = call.index.first_token(row); begin < end; begin += kStaged<kWidth>) {
      const int count = min(kStaged<kWidth>, end - begin);
      __syncthreads();
      stage<kWidth>(queries, call.q, batch, head, begin, count);
      stage<kWidth>(grads, gradients.grad, batch, head, begin, count);
      __syncthreads();
      if (local < count && lane == 0) {
        const std::int64_t at = place(gradients.out, batch, head, begin + local);
        float delta = 0;
        for (int e = 0; e < gradients.out.width; ++e) delta += grads[local][e] * element(gradients.out, at + e);
        deltas[local] = delta;
        log_sum_exps[local] = gradients.log_sum_exp[head_row + begin + local];
      }
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        float score = k.dot(queries[i], lane);
        const float of_p = v.dot(grads[i], lane);
        if (!active || !finish_score(call, batch, head, begin + i, key, score)) continue;
        const float p = expf(score - log_sum_exps[i]);
        sum_v.add(p, grads[i], lane);
        sum_k.add(p * (of_p - deltas[i]), queries[i], lane);
      }
    }
  }
  if (!active) return;
  sum_k.store(gradients.k, batch, head, key, lane, call.scale);
  sum_v.store(gradients.v, batch, head, key, lane, 1);
}

dim3 grid_of(const DeviceCall& call) {
  return dim3(static_cast<unsigned>(call.index.tiles()), static_cast<unsigned>(call.heads),
              static_cast<unsigned>(call.batch));
}

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <int kWidth>
const char* forward_of(const DeviceCall& call, const DeviceRows& out, float* log_sum_exp, cudaStream_t stream) {
  sdk::launch(forward_kernel<kWidth>, grid_of(call), kThreads, stream)(call, out, log_sum_exp);
  return last_error();
}

template <int kWidth>
const char* backward_of(const DeviceCall& call, const DeviceGradients& gradients, cudaStream_t stream) {
  sdk::launch(query_kernel<kWidth>, grid_of(call), kThreads, stream)(call, gradients);
  if (const char* error = last_error()) return error;
  sdk::launch(key_kernel<kWidth>, grid_of(call), kThreads, stream)(call, gradients);
  return last_error();
}

}  // namespace

const char* launch_forward(const DeviceCall& call, const DeviceRows& out, float* log_sum_exp, void* stream) {
  const int width = call.width > call.value_width ? call.width : call.value_width;
  const auto on = static_cast<cudaStream_t>(stream);
  if (width <= 64) return forward_of<64>(call, out, log_sum_exp, on);
  if (width <= 128) return forward_of<128>(call, out, log_sum_exp, on);
  return forward_of<kMostWidth>(call, out, log_sum_exp, on);
}

const char* launch_backward(const DeviceCall& call, const DeviceGradients& gradients, void* stream) {
  const int width = call.width > call.value_width ? call.width : call.value_width;
  const auto on = static_cast<cudaStream_t>(stream);
  if (width <= 64) return backward_of<64>(call, gradients, on);
  if (width <= 128) return backward_of<128>(call, gradients, on);
  return backward_of<kMostWidth>(call, gradients, on);
}

}  // namespace capstan::attention
