#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/compression/export_compressed.hpp"

namespace capstan {

/// A weight, or some rows of it, on its way into a file.
struct NamedPiece {
  const CompressedWeights::Weight* weight;
  NamedRows place;  // its count is that of rows

  /// Whether its codes are written. One with zero rows in front goes as values too: those rows have no scale.
  bool coded() const { return weight->plan != nullptr && !place.as_values && place.zero_rows == 0; }
  std::int64_t rows() const { return place.zero_rows + place.count; }
  /// The shape there.
  std::vector<std::int64_t> shape() const;
  std::int64_t numel() const;
  CodedRows codes(CompressedWeights& weights) const;
  /// Whether its values or rows lie elsewhere as in no model here.
  bool is_laid_out() const { return place.rotary_heads > 0 || place.plus_one; }
  /// The values as they lie there: float32, of shape(), all at once.
  at::Tensor laid_out(CompressedWeights& weights) const;
  /// As values, read piece by piece; those of one that has codes are what the codes stand for.
  SafetensorsEntry values(CompressedWeights& weights, at::ScalarType dtype) const;
  void count(ExportReport& report, const std::string& what, std::int64_t bytes) const;
  /// The same of one that goes as values.
  void count_values(ExportReport& report, at::ScalarType dtype) const;
};

/// All weights under their own names.
std::vector<NamedPiece> pieces_of(const CompressedWeights& weights);
/// All weights under other names. Throws RuntimeFault for weights without a name there, for names without a weight, and
/// for rows that a weight has not.
std::vector<NamedPiece> pieces_of(const CompressedWeights& weights, const NamesElsewhere& names);

/// A tensor that is made when the file comes to it.
SafetensorsEntry made_when_written(const std::string& name, const std::vector<std::int64_t>& shape,
                                   at::ScalarType dtype, std::function<at::Tensor()> make);

/// "1 bit", "8 bits, groups of 32"
std::string described(int bits, const RowGroups& groups);

}  // namespace capstan
