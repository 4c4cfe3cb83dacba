#include "update_quantizer.hpp"

#include <algorithm>
#include <array>
#include <bit>
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
/// Elements that are worked on together.
constexpr std::size_t kRun = 1024;
using Run = std::array<float, kRun>;

std::span<const float> in_float16(std::span<const float> x, Run& to) {
  std::transform(x.begin(), x.end(), to.begin(), rounded_to_float16);
  return {to.data(), x.size()};
}

/// Calls use(group, begin, end) for runs of elements that lie in one group, on several threads.
template <class Use>
void for_each_run(const CompressedPiece& piece, Use&& use) {
  const auto size = static_cast<std::int64_t>(piece.group_size()), offset = static_cast<std::int64_t>(piece.offset());
  const std::int64_t first = offset / size;
  sdk::parallel_for(
      0, static_cast<std::int64_t>(piece.input().size()), CompressedPiece::kBlock,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end;) {
          const std::int64_t group = (offset + at) / size;
          const std::int64_t stop = std::min({end, (group + 1) * size - offset, at + static_cast<std::int64_t>(kRun)});
          use(static_cast<std::size_t>(group - first), static_cast<std::size_t>(at), static_cast<std::size_t>(stop));
          at = stop;
        }
      });
}

}  // namespace

float rounded_to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size >= 0x477ff000u) return x;  // 65520 and more, infinity, NaN
  // Below 2^-14 float16 has multiples of 2^-24: adding 0.75, whose last bit is 2^-24, rounds to one.
  const float small = std::bit_cast<float>(size) + 0.75f - 0.75f;
  const std::uint32_t normal = (size + 0xfffu + (size >> 13 & 1u)) & ~0x1fffu;
  return std::copysign(size < 0x38800000u ? small : std::bit_cast<float>(normal), x);
}

/// What the values of one group become: levels of a grid, or signs times a magnitude.
struct UpdateQuantizer::Levels {
  bool signs = false;
  quantize::Grid grid;
  float magnitude = 0, above = 0;

  void values(std::span<const float> x, float* out) const {
    if (signs) return quantize::to_signs(x, magnitude, above, out);
    quantize::to_grid(x, grid, out);
  }
  void codes(std::span<const float> x, std::int8_t* out) const {
    if (!signs) return quantize::to_codes(x, grid, out);
    for (std::size_t i = 0; i < x.size(); ++i) {
      out[i] = static_cast<std::int8_t>(std::fabs(x[i]) > above ? std::copysign(1.0f, x[i]) : 0.0f);
    }
  }
  float scale() const { return signs ? magnitude : quantize::scale_of(grid); }
  std::int32_t zero_point() const { return !signs && grid.scale > 0 ? grid.zero_point : 0; }
  /// Moves values by noise, in levels: what is rounded to nearest then is rounded stochastically.
  void add(const Noise& noise, std::int64_t first, std::span<float> x) const {
    if (!noise || signs || !(grid.scale > 0)) return;
    Run moved;
    noise(first, {moved.data(), x.size()});
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += moved[i] * grid.scale;
  }
};

UpdateQuantizer::UpdateQuantizer(bool symmetric, bool half_scales, int fewest_bits)
    : symmetric_(symmetric), half_scales_(half_scales), signs_(fewest_bits <= 2) {}

// The numbers of a group: the smallest and largest value, or the largest magnitude; with 1 and 2 bits also the sum of
// magnitudes, then of those above the threshold their sum and count.
std::vector<std::vector<Join>> UpdateQuantizer::measures() const {
  if (!symmetric_) return {{Join::kMin, Join::kMax}};
  if (!signs_) return {{Join::kMax}};
  return {{Join::kMax, Join::kSum}, {Join::kSum, Join::kSum}};
}

std::size_t UpdateQuantizer::numbers() const { return !symmetric_ ? 2 : signs_ ? 4 : 1; }

void UpdateQuantizer::measure(const CompressedPiece& piece, unsigned round, double* partials) const {
  const std::span<const float> x = piece.input();
  const double group_size = static_cast<double>(piece.group_size());
  piece.parallel_segments([&](std::size_t segment, std::size_t group, std::size_t begin, std::size_t end) {
    double* to = partials + segment * (symmetric_ && !signs_ ? 1 : 2);
    float low = std::numeric_limits<float>::infinity(), high = -low, largest = 0;
    double sum = 0, count = 0;
    float threshold = -1;
    if (round == 1)
      threshold = static_cast<float>(kTernaryShare * (piece.statistics(group, numbers())[1] / group_size));
    Run run;
    for (std::size_t at = begin; at < end; at += kRun) {
      const auto here = in_float16(x.subspan(at, std::min(kRun, end - at)), run);
      if (!symmetric_) {
        const quantize::Extremes found = quantize::extremes(here);
        // NaN wins over all.
        low = !(low <= found.low) ? found.low : low;
        high = !(high >= found.high) ? found.high : high;
        if (std::isnan(found.low)) break;
        continue;
      }
      if (round == 0) {
        const float found = quantize::largest_magnitude(here);
        largest = std::isnan(found) || found > largest ? found : largest;
        if (std::isnan(found)) break;
      }
      if (!signs_) continue;
      const quantize::Magnitudes above = quantize::magnitudes_above(here, threshold);
      sum += above.sum;
      count += above.count;
    }
    if (!symmetric_) {
      to[0] = low;
      to[1] = high;
    } else if (round == 0) {
      to[0] = largest;
      if (signs_) to[1] = std::isnan(largest) ? largest : sum;
    } else {
      to[0] = sum;
      to[1] = count;
    }
  });
}

UpdateQuantizer::Levels UpdateQuantizer::levels(const CompressedPiece& piece, std::size_t group, int bits) const {
  const double* numbers_here = piece.statistics(group, numbers());
  Levels made;
  if (!symmetric_) {
    made.grid = quantize::asymmetric_grid(static_cast<float>(numbers_here[0]), static_cast<float>(numbers_here[1]),
                                          bits, half_scales_);
    return made;
  }
  if (bits > 2) {
    made.grid = quantize::symmetric_grid(static_cast<float>(numbers_here[0]), bits, half_scales_);
    return made;
  }
  made.signs = true;
  const double size = static_cast<double>(piece.group_size());
  const double sum = bits == 1 ? numbers_here[1] : numbers_here[2], count = bits == 1 ? size : numbers_here[3];
  const float mean = count > 0 ? static_cast<float>(sum / count) : 0.0f;
  made.magnitude = !std::isfinite(numbers_here[0]) ? std::numeric_limits<float>::quiet_NaN()
                   : half_scales_                  ? quantize::as_float16(mean)
                                                   : mean;
  if (bits == 2) made.above = static_cast<float>(kTernaryShare * (numbers_here[1] / size));
  return made;
}

void UpdateQuantizer::transform(const CompressedPiece& piece, const How& how, std::span<float> values) const {
  const std::span<const float> x = piece.input();
  const auto share = static_cast<float>(how.share);
  for_each_run(piece, [&](std::size_t group, std::size_t begin, std::size_t end) {
    const Levels into = levels(piece, group, how.bits);
    Run run, moved;
    const auto here = in_float16(x.subspan(begin, end - begin), run);
    std::copy(here.begin(), here.end(), moved.begin());
    into.add(how.noise, static_cast<std::int64_t>(piece.offset() + begin), {moved.data(), here.size()});
    float* to = values.data() + begin;
    into.values({moved.data(), here.size()}, to);
    if (share <= 0) return;
    for (std::size_t i = 0; i < here.size(); ++i) to[i] = share * here[i] + (1.0f - share) * to[i];
  });
}

void UpdateQuantizer::encode(const CompressedPiece& piece, const How& how, const sdk::Codes& to) const {
  const std::span<const float> x = piece.input();
  piece.for_each_group([&](std::size_t group, std::size_t, std::size_t) {
    const Levels into = levels(piece, group, how.bits);
    to.scales[group] = into.scale();
    to.zero_points[group] = into.zero_point();
  });
  for_each_run(piece, [&](std::size_t group, std::size_t begin, std::size_t end) {
    const Levels into = levels(piece, group, how.bits);
    Run run;
    const auto here = in_float16(x.subspan(begin, end - begin), run);
    into.add(how.noise, static_cast<std::int64_t>(piece.offset() + begin), {run.data(), here.size()});
    into.codes({run.data(), here.size()}, to.codes.data() + begin);
  });
}

}  // namespace capstan::compression
