#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/quantize.hpp"

namespace capstan::compression {

/// The quantisers of DeepSpeed's compression library, by bits: 1 binary (Rastegari et al. 2016, XNOR-Net, equation 6),
/// 2 ternary (Li and Liu 2016, Ternary weight networks, equations 4 to 6), 3 and more uniform. Each works on groups
/// alone.
class Quantizer {
 public:
  Quantizer(int bits, bool symmetric, bool half_scales) : bits_(bits), symmetric_(symmetric), half_(half_scales) {}

  int bits() const { return bits_; }
  bool has_zero_points() const { return !symmetric_ && bits_ > 2; }
  /// What it measures of each group, round by round.
  std::vector<std::vector<sdk::Join>> measures() const;
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const;
  void transform(const sdk::CompressedPiece& piece, std::span<float> values) const;
  void encode(const sdk::CompressedPiece& piece, const sdk::Codes& to) const;

 private:
  std::size_t numbers() const;
  sdk::quantize::Grid grid(const double* statistics) const;
  float magnitude(const double* statistics, double group_size) const;
  float threshold(const double* statistics, double group_size) const;

  int bits_;
  bool symmetric_, half_;
};

}  // namespace capstan::compression
