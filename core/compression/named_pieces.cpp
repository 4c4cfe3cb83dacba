#include "core/compression/named_pieces.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/read_values.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

std::int64_t rows_of(const CompressedWeights::Weight& weight) {
  const auto shape = weight.shape();
  return shape.empty() ? 1 : shape[0];
}

/// The rows here in the order in which llama.cpp has them, which rotates neighbours: of each head rows i and
/// i + size / 2 become neighbours.
at::Tensor rotary_order(std::int64_t rows, std::int64_t heads) {
  const std::int64_t size = rows / heads;
  const at::Tensor order = host_empty({rows}, at::kLong);
  auto* to = order.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t in_head = row % size;
    to[row] = row - in_head + in_head / 2 + in_head % 2 * (size / 2);
  }
  return order;
}

void check_rows(const NamedPiece& piece, const NamesElsewhere& names) {
  const std::int64_t rows = rows_of(*piece.weight);
  if (piece.place.rotary_heads > 0 && rows % (2 * piece.place.rotary_heads) != 0) {
    throw RuntimeFault("model '" + names.model + "': '" + piece.place.parameter + "' has " + std::to_string(rows) +
                       " rows, which " + std::to_string(piece.place.rotary_heads) +
                       " heads of an even size do not make up.");
  }
  if (piece.place.first >= 0 && piece.place.count >= 0 && piece.place.zero_rows >= 0 &&
      piece.place.first <= rows - piece.place.count) {
    return;
  }
  throw RuntimeFault("model '" + names.model + "': tells of rows " + std::to_string(piece.place.first) + " to " +
                     std::to_string(piece.place.first + piece.place.count) + " of '" + piece.place.parameter +
                     "', which has " + std::to_string(rows) + ".");
}

}  // namespace

std::vector<std::int64_t> NamedPiece::shape() const {
  std::vector<std::int64_t> shape = weight->shape();
  if (!shape.empty()) shape[0] = rows();
  return shape;
}

std::int64_t NamedPiece::numel() const {
  const std::int64_t all = rows_of(*weight);
  return all == 0 ? 0 : weight->numel() / all * rows();
}

CodedRows NamedPiece::codes(CompressedWeights& weights) const {
  const CodedRows& all = weights.codes(*weight);
  if (weight->shape().size() < 2) return all;
  const CodedRows some = all.rows(place.first, place.count);
  return place.rotary_heads == 0 ? some : some.in_order(rotary_order(place.count, place.rotary_heads));
}

at::Tensor NamedPiece::laid_out(CompressedWeights& weights) const {
  at::Tensor all = values(weights, at::kFloat).read(0, numel()).view(shape());
  if (place.rotary_heads > 0) all = all.index_select(0, rotary_order(rows(), place.rotary_heads));
  return place.plus_one ? all.add(1) : all;
}

SafetensorsEntry NamedPiece::values(CompressedWeights& weights, at::ScalarType dtype) const {
  const std::int64_t columns = rows() == 0 ? 0 : numel() / rows();
  const std::int64_t zeros = place.zero_rows * columns, skipped = place.first * columns;
  const auto elements = [weight = weight, &weights](std::int64_t from, std::int64_t count) {
    if (weight->plan == nullptr) return weight->values.read(from, count);
    return weights.codes(*weight).values().view({-1}).narrow(0, from, count);
  };
  const auto read = [elements, dtype, zeros, skipped](std::int64_t from, std::int64_t count) {
    const std::int64_t empty = std::clamp<std::int64_t>(zeros - from, 0, count);
    const std::int64_t at = skipped + from + empty - zeros;
    if (empty == 0) return elements(at, count).to(dtype);
    const at::Tensor made = host_zeros({count}, dtype);
    if (empty < count) made.narrow(0, empty, count - empty).copy_(elements(at, count - empty));
    return made;
  };
  return {place.name, values_elsewhere(shape(), dtype), read};
}

void NamedPiece::count(ExportReport& report, const std::string& what, std::int64_t bytes) const {
  auto row = std::find_if(report.rows.begin(), report.rows.end(),
                          [&](const ExportReport::Row& one) { return one.what == what; });
  if (row == report.rows.end()) row = report.rows.insert(row, ExportReport::Row{what});
  row->tensors += 1;
  row->elements += numel();
  const std::int64_t left = weight->numel(), had = weight->saved.values.numel();
  const std::int64_t share = left == had || left == 0 ? numel() : had / rows_of(*weight) * place.count;
  row->before += share * static_cast<std::int64_t>(weight->saved.values.element_size());
  row->after += bytes;
}

void NamedPiece::count_values(ExportReport& report, at::ScalarType dtype) const {
  const auto bytes = numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::string what = weight->plan != nullptr                          ? "values of codes, "
                           : weight->numel() < weight->saved.values.numel() ? "removed in part, "
                           : weight->masked                                 ? "masked, "
                                                                            : "as it is, ";
  const char* name = safetensors_dtype(dtype);
  count(report, what + (name != nullptr ? name : c10::toString(dtype)), bytes);
}

std::vector<NamedPiece> pieces_of(const CompressedWeights& weights) {
  std::vector<NamedPiece> pieces;
  for (const CompressedWeights::Weight& weight : weights.all()) {
    pieces.push_back({&weight, {weight.name(), weight.name(), 0, rows_of(weight), 0}});
  }
  return pieces;
}

std::vector<NamedPiece> pieces_of(const CompressedWeights& weights, const NamesElsewhere& names) {
  std::vector<NamedPiece> pieces;
  std::string missing, homeless;
  std::set<std::string> used;
  for (const NamedRows& place : names.tensors) {
    const CompressedWeights::Weight* weight = weights.find(place.parameter);
    used.insert(place.parameter);
    if (weight == nullptr) {
      missing += " '" + place.parameter + "'";
      continue;
    }
    NamedPiece& piece = pieces.emplace_back(NamedPiece{weight, place});
    if (place.count < 0) piece.place.count = rows_of(*weight);
    check_rows(piece, names);
  }
  for (const CompressedWeights::Weight& weight : weights.all()) {
    if (!used.contains(weight.name())) homeless += " '" + weight.name() + "'";
  }
  if (!missing.empty()) throw RuntimeFault("model '" + names.model + "': the checkpoint lacks" + missing + ".");
  if (!homeless.empty()) throw RuntimeFault("model '" + names.model + "': tells no name there for" + homeless + ".");
  return pieces;
}

SafetensorsEntry made_when_written(const std::string& name, const std::vector<std::int64_t>& shape,
                                   at::ScalarType dtype, std::function<at::Tensor()> make) {
  const auto read = [make = std::move(make), made = at::Tensor()](std::int64_t from, std::int64_t count) mutable {
    if (from == 0) made = make().contiguous().view({-1});
    const at::Tensor piece = made.narrow(0, from, count);
    if (from + count == made.numel()) made = at::Tensor();
    return piece;
  };
  return {name, values_elsewhere(shape, dtype), read};
}

std::string described(int bits, const RowGroups& groups) {
  return std::to_string(bits) + (bits == 1 ? " bit, " : " bits, ") +
         (groups.whole ? "one group" : "groups of " + std::to_string(groups.group));
}

}  // namespace capstan
