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

  bool coded() const { return weight->plan != nullptr; }
  std::int64_t rows() const { return place.zero_rows + place.count; }
  /// The shape there.
  std::vector<std::int64_t> shape() const;
  std::int64_t numel() const;
  CodedRows codes(CompressedWeights& weights) const;
  /// As it is, read piece by piece.
  SafetensorsEntry values(at::ScalarType dtype) const;
  void count(ExportReport& report, const std::string& what, std::int64_t bytes) const;
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
