#pragma once

#include <cstdint>

#include "plugins/attention/cuda/block_index.hpp"

// Without the SDK's C++, which is newer than what nvcc is asked for.

namespace capstan::attention {

/// Widths of heads that the kernels are made for, at most.
constexpr int kMostWidth = 256;
constexpr int kMostTerms = 8;

enum class DeviceDtype { kFloat32, kBFloat16, kFloat16 };

/// [batch, heads, tokens, width], rows without gaps.
struct DeviceRows {
  void* data;
  DeviceDtype dtype;
  int width;
  std::int64_t batch_stride, head_stride, token_stride;
};

struct DeviceTerm {
  bool mask;
  const void* values;  // bool or float
  std::int64_t batch_stride, head_stride, query_stride, key_stride;
  float* grad;
};

struct DeviceCall {
  DeviceRows q, k, v;
  int batch, heads, tokens, width, value_width;
  float scale;
  DeviceTerm terms[kMostTerms];
  int term_count;
  BlockIndex index;  // of lists in device memory
};

struct DeviceGradients {
  DeviceRows out;
  const float* log_sum_exp;
  DeviceRows grad, q, k, v;
};

// Put work into `stream`, a cudaStream_t. Null, or why the launch failed.
const char* launch_forward(const DeviceCall& call, const DeviceRows& out, float* log_sum_exp, void* stream);
const char* launch_backward(const DeviceCall& call, const DeviceGradients& gradients, void* stream);

}  // namespace capstan::attention
