#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "capstan/sdk/random.hpp"

namespace capstan {

/// The random numbers by which an update rounds elements of one tensor of one parameter: functions of the seed, the
/// tensor's name, the parameter, the update and the element, so that ranks, stages and devices round alike.
struct RoundingNumbers {
  /// `tensor`: "master", or the name of a state. `parameter`: its index among those that are trained. `first`: the
  /// element of the whole parameter, below 2^35, that the first value is.
  RoundingNumbers(std::uint64_t seed, std::string_view tensor, std::int64_t update, std::size_t parameter,
                  std::int64_t first);

  sdk::RandomStream stream;
  std::uint64_t update;
  std::uint32_t parameter;
  std::int64_t first;
};

/// Rounds fp32 values to bfloat16 or float16 numbers, up with the probability that the distance to the lower neighbour
/// is of the distance between both: the mean is the value itself (Croci et al., "Stochastic rounding: implementation,
/// error analysis and applications", 2022, section 2). Sixteen random bits a value, of which float16 uses 13. What is
/// beyond the largest float16 number, or is not finite, is rounded to the nearest. Both tensors are contiguous, of one
/// dimension and on one device; every device gives the same bits.
void round_stochastically(const at::Tensor& from, const at::Tensor& to, const RoundingNumbers& numbers);
/// The same by operators of LibTorch, as devices do it.
void round_by_operators(const at::Tensor& from, const at::Tensor& to, const RoundingNumbers& numbers);

}  // namespace capstan
