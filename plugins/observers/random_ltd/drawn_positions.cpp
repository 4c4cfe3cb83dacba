#include "drawn_positions.hpp"

#include <ATen/ops/empty.h>

#include "capstan/sdk/random.hpp"

namespace capstan::random_ltd {
namespace {

/// Knuth's selection sampling (The Art of Computer Programming, volume 2, 3.4.2, algorithm S), which gives the
/// positions in ascending order.
void draw_row(const sdk::RandomStream& numbers, std::uint64_t sample, const TokenChoice& choice, std::int64_t* out) {
  constexpr int kPerCall = 4;  // a call gives so many words of 32 bits
  std::uint32_t words[kPerCall] = {};
  std::int64_t chosen = 0;
  for (std::int64_t position = 0; chosen < choice.keep; ++position) {
    const auto word = static_cast<std::uint32_t>(position % kPerCall);
    if (word == 0) {
      const auto pair = numbers.words(sample, choice.layer, static_cast<std::uint32_t>(position / kPerCall));
      for (int i = 0; i < kPerCall; ++i) words[i] = static_cast<std::uint32_t>(pair[i / 2] >> (32 * (i % 2)));
    }
    const auto left = static_cast<std::uint64_t>(choice.tokens - position);
    const std::uint64_t below_left = words[word] * left >> 32;
    if (below_left < static_cast<std::uint64_t>(choice.keep - chosen)) out[chosen++] = position;
  }
}

}  // namespace

at::Tensor draw_positions(std::uint64_t seed, const TokenChoice& choice) {
  constexpr const char* kPurpose = "random_ltd";
  const std::uint64_t of_step =
      sdk::RandomStream(seed, kPurpose).words(static_cast<std::uint64_t>(choice.step), 0, 0)[0];
  const sdk::RandomStream numbers(of_step, kPurpose);
  const std::int64_t rows = choice.samples.numel();
  const at::Tensor out = at::empty({rows, choice.keep}, at::kLong);
  const auto* samples = choice.samples.const_data_ptr<std::int64_t>();
  auto* positions = out.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    draw_row(numbers, static_cast<std::uint64_t>(samples[row]), choice, positions + row * choice.keep);
  }
  return out;
}

}  // namespace capstan::random_ltd
