#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "plugins/optimizers/onebit/kernels.hpp"

namespace capstan::optimizers {

/// In the memory of the current CUDA device, in the stream that `stream` tells (a cudaStream_t), without waiting but
/// where Kernels says so. Throws std::runtime_error with CUDA's text.
std::unique_ptr<Kernels> cuda_kernels(std::function<void*()> stream);

}  // namespace capstan::optimizers
