#pragma once

#include <cstddef>

namespace signum {

enum class GradientType { kFloat32, kBFloat16, kFloat16 };

struct Numbers {
  float lr, momentum, weight_decay, grad_scale;
};

/// One update of `count` elements in device memory, put into `stream` (a cudaStream_t). Null, or why it failed.
const char* launch(float* weights, float* means, const void* gradients, GradientType type, std::size_t count,
                   const Numbers& numbers, void* stream);

}  // namespace signum
