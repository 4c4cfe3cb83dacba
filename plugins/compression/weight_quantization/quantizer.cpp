#include "quantizer.hpp"

#include <cmath>
#include <limits>

#include "capstan/sdk/parallel.hpp"

namespace capstan::compression {
namespace {

using sdk::CompressedPiece;
using sdk::Join;
namespace quantize = sdk::quantize;

/// Ternary weights are those of more than this share of the mean magnitude (Li and Liu 2016, section 2.3).
constexpr double kTernaryShare = 0.7;

/// Calls use(group, begin, end) for the groups of a piece, on several threads; a group may come in several runs.
template <class Use>
void for_each_group(const CompressedPiece& piece, Use&& use) {
  const auto size = static_cast<std::int64_t>(piece.group_size());
  const auto offset = static_cast<std::int64_t>(piece.offset());
  const std::int64_t first = offset / size;
  sdk::parallel_for(0, static_cast<std::int64_t>(piece.input().size()), CompressedPiece::kBlock,
                    [&](std::int64_t begin, std::int64_t end) {
                      std::int64_t group = (offset + begin) / size;
                      for (std::int64_t at = begin; at < end; ++group) {
                        const std::int64_t stop = std::min(end, (group + 1) * size - offset);
                        use(static_cast<std::size_t>(group - first), static_cast<std::size_t>(at),
                            static_cast<std::size_t>(stop));
                        at = stop;
                      }
                    });
}

}  // namespace

std::vector<std::vector<Join>> Quantizer::measures() const {
  if (bits_ == 1) return {{Join::kSum}};
  if (bits_ == 2) return {{Join::kSum}, {Join::kSum, Join::kSum}};
  return symmetric_ ? std::vector<std::vector<Join>>{{Join::kMax}}
                    : std::vector<std::vector<Join>>{{Join::kMin, Join::kMax}};
}

std::size_t Quantizer::numbers() const { return bits_ == 1 ? 1 : bits_ == 2 ? 3 : symmetric_ ? 1 : 2; }

void Quantizer::measure(const CompressedPiece& piece, unsigned round, double* partials) const {
  const std::span<const float> x = piece.input();
  const double group_size = static_cast<double>(piece.group_size());
  piece.parallel_segments([&](std::size_t segment, std::size_t group, std::size_t begin, std::size_t end) {
    const std::span<const float> here = x.subspan(begin, end - begin);
    if (bits_ <= 2 && round == 0) {
      partials[segment] = quantize::magnitudes_above(here, -1.0f).sum;
    } else if (bits_ == 2) {
      const auto above = quantize::magnitudes_above(here, threshold(piece.statistics(group, numbers()), group_size));
      partials[2 * segment] = above.sum;
      partials[2 * segment + 1] = above.count;
    } else if (symmetric_) {
      partials[segment] = quantize::largest_magnitude(here);
    } else {
      const quantize::Extremes found = quantize::extremes(here);
      partials[2 * segment] = found.low;
      partials[2 * segment + 1] = found.high;
    }
  });
}

quantize::Grid Quantizer::grid(const double* statistics) const {
  if (symmetric_) return quantize::symmetric_grid(static_cast<float>(statistics[0]), bits_, half_);
  return quantize::asymmetric_grid(static_cast<float>(statistics[0]), static_cast<float>(statistics[1]), bits_, half_);
}

/// The magnitude that values of 1 and 2 bits have; NaN for a group that is not finite.
float Quantizer::magnitude(const double* statistics, double group_size) const {
  if (!std::isfinite(statistics[0])) return std::numeric_limits<float>::quiet_NaN();
  const double sum = bits_ == 1 ? statistics[0] : statistics[1], count = bits_ == 1 ? group_size : statistics[2];
  const float mean = count > 0 ? static_cast<float>(sum / count) : 0.0f;
  return half_ ? quantize::as_float16(mean) : mean;
}

float Quantizer::threshold(const double* statistics, double group_size) const {
  return static_cast<float>(kTernaryShare * (statistics[0] / group_size));
}

void Quantizer::transform(const CompressedPiece& piece, std::span<float> values) const {
  const std::span<const float> x = piece.input();
  const double group_size = static_cast<double>(piece.group_size());
  for_each_group(piece, [&](std::size_t group, std::size_t begin, std::size_t end) {
    const double* statistics = piece.statistics(group, numbers());
    if (bits_ > 2) return quantize::to_grid(x.subspan(begin, end - begin), grid(statistics), values.data() + begin);
    const float size = magnitude(statistics, group_size);
    const float above = bits_ == 2 ? threshold(statistics, group_size) : 0.0f;
    quantize::to_signs(x.subspan(begin, end - begin), size, above, values.data() + begin);
  });
}

void Quantizer::encode(const CompressedPiece& piece, const sdk::Codes& to) const {
  const std::span<const float> x = piece.input();
  const double group_size = static_cast<double>(piece.group_size());
  piece.for_each_group([&](std::size_t group, std::size_t, std::size_t) {
    const double* statistics = piece.statistics(group, numbers());
    if (bits_ <= 2) {
      to.scales[group] = magnitude(statistics, group_size);
      return;
    }
    const quantize::Grid made = grid(statistics);
    to.scales[group] = quantize::scale_of(made);
    to.zero_points[group] = made.scale > 0 ? made.zero_point : 0;
  });
  for_each_group(piece, [&](std::size_t group, std::size_t begin, std::size_t end) {
    const double* statistics = piece.statistics(group, numbers());
    if (bits_ > 2) {
      return quantize::to_codes(x.subspan(begin, end - begin), grid(statistics), to.codes.data() + begin);
    }
    const float above = bits_ == 2 ? threshold(statistics, group_size) : 0.0f;
    for (std::size_t i = begin; i < end; ++i) {
      to.codes[i] = static_cast<std::int8_t>(std::fabs(x[i]) > above ? std::copysign(1.0f, x[i]) : 0.0f);
    }
  });
}

}  // namespace capstan::compression
