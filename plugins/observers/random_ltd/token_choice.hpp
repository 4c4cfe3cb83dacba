#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace capstan::random_ltd {

/// What the positions that a wrapped layer keeps may depend on.
struct TokenChoice {
  std::int64_t step = 0, micro_step = 0;
  at::Tensor samples;       // int64 [samples], on the CPU: their places in the order of all samples
  std::uint32_t layer = 0;  // among the wrapped ones
  std::int64_t tokens = 0, keep = 0;
};

/// Gives int64 [samples, keep] on the CPU: positions below `tokens`, ascending in each row.
using ChoosePositions = std::function<at::Tensor(const TokenChoice&)>;

}  // namespace capstan::random_ltd
