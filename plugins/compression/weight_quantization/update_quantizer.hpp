#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/quantize.hpp"

namespace capstan::compression {

/// The number that float16 holds nearest to x, half to even; what is too large for float16 stays as it is.
float rounded_to_float16(float x);

/// Fills `out` with the noise of the elements [first, first + out.size()) of a flattened weight: uniform in [-0.5,
/// 0.5). For any thread.
using Noise = std::function<void(std::int64_t first, std::span<float> out)>;

/// What MoQ makes of weights in float16, group by group, with any number of bits from its statistics: those of the
/// section compression_training.weight_quantization.
class UpdateQuantizer {
 public:
  /// `fewest_bits`: of all that will be asked for; with 1 or 2 more is measured.
  UpdateQuantizer(bool symmetric, bool half_scales, int fewest_bits);

  std::vector<std::vector<sdk::Join>> measures() const;
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const;

  struct How {
    int bits = 8;
    double share = 0;  // of what is not quantised, in what comes out
    Noise noise;       // of stochastic rounding; empty: to nearest
  };
  void transform(const sdk::CompressedPiece& piece, const How& how, std::span<float> values) const;
  /// With a share of 0 alone.
  void encode(const sdk::CompressedPiece& piece, const How& how, const sdk::Codes& to) const;

 private:
  struct Levels;
  std::size_t numbers() const;
  Levels levels(const sdk::CompressedPiece& piece, std::size_t group, int bits) const;

  bool symmetric_, half_scales_, signs_;
};

}  // namespace capstan::compression
