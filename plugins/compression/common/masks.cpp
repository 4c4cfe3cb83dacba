#include "masks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace capstan::compression {
namespace {

/// A float's bits, so that a mask is one instruction for several of them.
typedef std::uint32_t __attribute__((may_alias)) Bits;

constexpr std::int64_t kGrain = static_cast<std::int64_t>(sdk::CompressedPiece::kBlock);

/// Calls use(unit, begin, end) for the runs of one unit among elements [from, to) of a piece.
template <class Use>
void for_each_run(std::uint64_t offset, const UnitLayout& units, std::uint64_t from, std::uint64_t to, Use&& use) {
  for (std::uint64_t at = from; at < to;) {
    const std::uint64_t run = (offset + at) / units.inner;
    const std::uint64_t end = std::min((run + 1) * units.inner - offset, to);
    use(static_cast<std::size_t>(run % units.count), at, end);
    at = end;
  }
}

}  // namespace

void mask_units(const sdk::CompressedPiece& piece, const UnitLayout& units, std::span<const std::uint8_t> mask,
                std::span<const float> input, std::span<float> values) {
  const std::uint64_t offset = piece.offset();
  sdk::parallel_for(0, static_cast<std::int64_t>(input.size()), kGrain, [&](std::int64_t from, std::int64_t to) {
    for_each_run(offset, units, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
                 [&](std::size_t unit, std::uint64_t begin, std::uint64_t end) {
                   if (mask[unit] == 0) {
                     std::fill(values.begin() + static_cast<std::ptrdiff_t>(begin),
                               values.begin() + static_cast<std::ptrdiff_t>(end), 0.0f);
                   } else if (values.data() != input.data()) {
                     std::copy(input.begin() + static_cast<std::ptrdiff_t>(begin),
                               input.begin() + static_cast<std::ptrdiff_t>(end),
                               values.begin() + static_cast<std::ptrdiff_t>(begin));
                   }
                 });
  });
}

void mask_elements(std::span<const std::uint8_t> mask, std::span<const float> input, std::span<float> values) {
  const std::uint8_t* keeps = mask.data();
  const auto* from = reinterpret_cast<const Bits*>(input.data());
  auto* to = reinterpret_cast<Bits*>(values.data());
  sdk::parallel_for(0, static_cast<std::int64_t>(input.size()), kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = from[i] & (0u - keeps[i]);
  });
}

void mask_gradient(std::span<const std::uint8_t> mask, std::span<const float> input, std::span<float> gradient,
                   std::span<float> scores) {
  const std::uint8_t* keeps = mask.data();
  const float* from = input.data();
  float *grad = gradient.data(), *to = scores.data();
  const auto count = static_cast<std::int64_t>(gradient.size());
  if (scores.empty()) return mask_elements(mask, gradient, gradient);
  sdk::parallel_for(0, count, kGrain, [=](std::int64_t begin, std::int64_t end) {
    auto* bits = reinterpret_cast<Bits*>(grad);
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = grad[i] * from[i];
      bits[i] &= 0u - keeps[i];
    }
  });
}

std::vector<double> sums_of_magnitudes(const sdk::CompressedPiece& piece, std::uint64_t size) {
  std::vector<double> sums;
  const std::span<const float> input = piece.input();
  piece.for_each_segment_of(size, [&](std::size_t, std::uint64_t, std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += std::abs(static_cast<double>(input[i]));
    sums.push_back(sum);
  });
  return sums;
}

std::vector<double> sums_of_products(const sdk::CompressedPiece& piece, std::uint64_t size) {
  std::vector<double> sums;
  const std::span<const float> input = piece.input(), gradient = piece.gradient();
  piece.for_each_segment_of(size, [&](std::size_t, std::uint64_t, std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += static_cast<double>(gradient[i]) * static_cast<double>(input[i]);
    sums.push_back(sum);
  });
  return sums;
}

void keep_largest(std::span<const float> scores, std::uint64_t keep, std::span<std::uint8_t> mask) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::fill(mask.begin(), mask.end(), std::uint8_t{0});
  for (std::size_t i = 0; i < std::min<std::size_t>(keep, order.size()); ++i) mask[order[i]] = 1;
}

std::uint64_t kept_of(double ratio, std::uint64_t count) {
  const double wanted = ratio * static_cast<double>(count), nearest = std::round(wanted);
  const double kept = std::abs(wanted - nearest) <= 1e-9 * wanted ? nearest : std::ceil(wanted);
  return std::min(count, static_cast<std::uint64_t>(kept));
}

}  // namespace capstan::compression
