#include "core/precision/stochastic_rounding.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "capstan/sdk/float_bits.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kEach = 8;  // random numbers of 16 bits in the words of one counter
constexpr std::uint32_t kNotFinite = 0x7f800000u;
constexpr std::uint32_t kSmallestHalf = 0x38800000u;  // 2^-14: float16 numbers below it are multiples of 2^-24
constexpr std::uint32_t kLargestHalf = 0x477fe000u;   // 65504
constexpr std::uint32_t kHalfBias = 0x38000000u;      // between the exponents of float32 and float16

std::uint16_t round_to_bfloat16(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) >= kNotFinite) return sdk::to_bfloat16(value);
  return static_cast<std::uint16_t>((bits + random) >> 16);
}

std::uint16_t round_to_float16(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (size >= kLargestHalf) return sdk::to_float16(value);
  random >>= 3;
  if (size < kSmallestHalf) {
    // From 2^-14 to 2^-13 the numbers of float16 are multiples of 2^-24 too.
    const auto moved = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0x1p-14f);
    return static_cast<std::uint16_t>(sign | (moved - kSmallestHalf + random) >> 13);
  }
  return static_cast<std::uint16_t>(sign | (size + random - kHalfBias) >> 13);
}

/// Elements [begin, end) of a tensor in host memory.
template <class Round>
void round_run(const float* from, std::uint16_t* to, std::int64_t begin, std::int64_t end,
               const RoundingNumbers& numbers, Round round) {
  std::int64_t at = begin;
  while (at < end) {
    const std::int64_t element = numbers.first + at, number = element / kEach;
    const auto words = numbers.stream.words(numbers.update, numbers.parameter, static_cast<std::uint32_t>(number));
    const std::int64_t until = std::min(end, (number + 1) * kEach - numbers.first);
    for (; at < until; ++at) {
      const auto k = static_cast<std::size_t>(numbers.first + at - number * kEach);
      to[at] = round(from[at], static_cast<std::uint32_t>(words[k / 4] >> (k % 4 * 16)) & 0xffffu);
    }
  }
}

/// The high and the low 32 bits of the products of numbers below 2^32, which the tensor's 64 bits with a sign hold.
std::pair<at::Tensor, at::Tensor> product(const at::Tensor& values, std::int64_t factor) {
  const at::Tensor low = values.bitwise_and(0xffff) * factor, high = values.bitwise_right_shift(16) * factor;
  return {(high + low.bitwise_right_shift(16)).bitwise_right_shift(16),
          (high.bitwise_and(0xffff).bitwise_left_shift(16) + low).bitwise_and(0xffffffff)};
}

/// sdk::philox() of counters whose first word differs: its four words.
std::array<at::Tensor, 4> philox_of(const at::Tensor& numbers, const RoundingNumbers& of) {
  const auto like = [&](std::uint64_t word) {
    return at::full_like(numbers, static_cast<std::int64_t>(word & 0xffffffffu));
  };
  std::array<at::Tensor, 4> counter = {numbers, like(of.parameter), like(of.update), like(of.update >> 32)};
  std::array<std::uint32_t, 2> key = of.stream.key();
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = product(counter[0], 0xD2511F53);
    const auto [high2, low2] = product(counter[2], 0xCD9E8D57);
    counter = {high2.bitwise_xor(counter[1]).bitwise_xor(std::int64_t{key[0]}), low2,
               high0.bitwise_xor(counter[3]).bitwise_xor(std::int64_t{key[1]}), low0};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// Random numbers below 2^16, one an element.
at::Tensor random_halves(const at::Tensor& like, const RoundingNumbers& of) {
  const std::int64_t begin = of.first / kEach, end = (of.first + like.numel() + kEach - 1) / kEach;
  std::vector<at::Tensor> halves;
  for (const at::Tensor& word : philox_of(at::arange(begin, end, like.options().dtype(at::kLong)), of)) {
    halves.push_back(word.bitwise_and(0xffff));
    halves.push_back(word.bitwise_right_shift(16));
  }
  return at::stack(halves, 1).view({-1}).narrow(0, of.first - begin * kEach, like.numel());
}

}  // namespace

RoundingNumbers::RoundingNumbers(std::uint64_t seed, std::string_view tensor, std::int64_t of_update,
                                 std::size_t of_parameter, std::int64_t first_element)
    : stream(seed, "stochastic rounding, " + std::string(tensor)),
      update(static_cast<std::uint64_t>(of_update)),
      parameter(static_cast<std::uint32_t>(of_parameter)),
      first(first_element) {}

void round_by_operators(const at::Tensor& from, const at::Tensor& to, const RoundingNumbers& numbers) {
  const at::Tensor bits = from.view(at::kInt).to(at::kLong).bitwise_and(0xffffffff);
  const at::Tensor size = bits.bitwise_and(0x7fffffff), sign = bits.bitwise_right_shift(16).bitwise_and(0x8000);
  const at::Tensor random = random_halves(from, numbers);
  at::Tensor codes, nearest;
  if (to.scalar_type() == at::kBFloat16) {
    codes = (size + random).bitwise_right_shift(16);
    nearest = size >= std::int64_t{kNotFinite};
  } else {
    const at::Tensor few = random.bitwise_right_shift(3);
    const at::Tensor moved = (from.abs() + 0x1p-14).view(at::kInt).to(at::kLong);
    codes = at::where(size < std::int64_t{kSmallestHalf}, moved - std::int64_t{kSmallestHalf},
                      size - std::int64_t{kHalfBias});
    codes = (codes + few).bitwise_right_shift(13);
    nearest = size >= std::int64_t{kLargestHalf};
  }
  // 16 bits as a number with a sign: the highest bit counts -2^15.
  const at::Tensor rounded = (codes - sign).to(at::kShort).view(to.scalar_type());
  at::Tensor(to).copy_(at::where(nearest, from.to(to.scalar_type()), rounded));
}

void round_stochastically(const at::Tensor& from, const at::Tensor& to, const RoundingNumbers& numbers) {
  constexpr std::int64_t kGrain = 16384;
  if (from.numel() == 0) return;
  if (!from.is_cpu()) return round_by_operators(from, to, numbers);
  const auto* values = from.const_data_ptr<float>();
  auto* codes = static_cast<std::uint16_t*>(to.mutable_data_ptr());
  const bool brain = to.scalar_type() == at::kBFloat16;
  at::parallel_for(0, from.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (brain) {
      round_run(values, codes, begin, end, numbers, round_to_bfloat16);
    } else {
      round_run(values, codes, begin, end, numbers, round_to_float16);
    }
  });
}

}  // namespace capstan
