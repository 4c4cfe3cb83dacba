#include "core/compression/coded_rows.hpp"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kBlock = 32;  // values of a block in GGUF
constexpr int kWordBits = 32;

/// One block: `scale`, then 32 codes. Returns where the next one begins.
std::uint8_t* write_block(float scale, const std::int8_t* codes, int bits, std::uint8_t* out) {
  const c10::Half half(scale);
  std::memcpy(out, &half.x, sizeof half.x);
  out += sizeof half.x;
  if (bits == 8) {
    std::memcpy(out, codes, kBlock);
    return out + kBlock;
  }
  for (std::int64_t i = 0; i < kBlock / 2; ++i) {
    *out++ = static_cast<std::uint8_t>((codes[i] + 8) | (codes[i + kBlock / 2] + 8) << 4);
  }
  return out;
}

}  // namespace

RowGroups row_groups(const std::string& parameter, const std::vector<std::int64_t>& shape,
                     const CompressionPlan::Parameter& plan) {
  const std::int64_t numel = plan.layout.numel, size = plan.layout.size();
  RowGroups groups;
  groups.rows = shape.size() >= 2 ? shape[0] : 1;
  groups.columns = numel / std::max<std::int64_t>(groups.rows, 1);
  groups.group = size;
  groups.whole = plan.layout.groups == 1;
  groups.has_zero_points = plan.zero_points;
  if (size > 0 && groups.columns % size == 0) {
    groups.per_row = groups.columns / size;
  } else if (size > 0 && size % groups.columns == 0) {
    groups.per_row = 1;
  } else {
    throw RuntimeFault("parameter '" + parameter + "': its " + std::to_string(plan.layout.groups) + " groups of " +
                       std::to_string(size) + " elements end within its rows of " + std::to_string(groups.columns) +
                       ", and no format holds such groups. What fits: as many groups as rows, " +
                       std::to_string(groups.rows) + ", a multiple of them that divides each row, or 1.");
  }
  return groups;
}

CodedRows CodedRows::rows(std::int64_t first, std::int64_t count) const {
  return {bits, whole, codes.narrow(0, first, count), scales.narrow(0, first, count),
          zero_points.narrow(0, first, count)};
}

CodedRows CodedRows::in_order(const at::Tensor& order) const {
  return {bits, whole, codes.index_select(0, order), scales.index_select(0, order), zero_points.index_select(0, order)};
}

at::Tensor CodedRows::values() const {
  const std::int64_t each = codes.size(1) / scales.size(1);
  const at::Tensor levels = codes.to(at::kInt).sub(zero_points.repeat_interleave(each, 1)).to(at::kFloat);
  return levels.mul(scales.repeat_interleave(each, 1));
}

CodedRows coded_rows(const RowGroups& groups, const WeightCodes& codes) {
  const auto in_rows = [&](const at::Tensor& of_groups) {
    const std::int64_t wanted = groups.rows * groups.per_row;
    return of_groups.repeat_interleave(wanted / of_groups.numel()).view({groups.rows, groups.per_row});
  };
  return {codes.bits, groups.whole, codes.codes.view({groups.rows, groups.columns}), in_rows(codes.scales),
          in_rows(codes.zero_points)};
}

at::Tensor packed_words(const at::Tensor& codes, int bits) {
  const at::Tensor from = codes.contiguous();
  const std::int64_t rows = from.size(0), columns = from.size(1);
  const std::int64_t words = (columns * bits + kWordBits - 1) / kWordBits;
  const at::Tensor packed = host_zeros({rows, words}, at::kInt);
  const auto* code = from.const_data_ptr<std::int8_t>();
  auto* row = reinterpret_cast<std::uint32_t*>(packed.mutable_data_ptr<std::int32_t>());
  const std::uint32_t mask = (1u << bits) - 1;
  for (std::int64_t r = 0; r < rows; ++r, row += words) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::uint64_t value = static_cast<std::uint32_t>(*code++ + (1 << (bits - 1))) & mask;
      const std::int64_t bit = c * bits;
      const std::uint64_t shifted = value << (bit % kWordBits);
      row[bit / kWordBits] |= static_cast<std::uint32_t>(shifted);
      if (shifted >> kWordBits != 0) row[bit / kWordBits + 1] |= static_cast<std::uint32_t>(shifted >> kWordBits);
    }
  }
  return packed;
}

at::Tensor gguf_blocks(const CodedRows& rows) {
  const at::Tensor codes = rows.codes.contiguous(), scales = rows.scales.contiguous();
  const std::int64_t blocks = codes.numel() / kBlock, per_scale = blocks / scales.numel();
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(c10::Half)) + kBlock * rows.bits / 8;
  const at::Tensor made = host_empty({blocks * bytes}, at::kByte);
  const auto* code = codes.const_data_ptr<std::int8_t>();
  const auto* scale = scales.const_data_ptr<float>();
  auto* out = made.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t block = 0; block < blocks; ++block) {
    out = write_block(scale[block / per_scale], code + block * kBlock, rows.bits, out);
  }
  return made;
}

CodedRows rounded_to_q8_0(const at::Tensor& matrix) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor blocks = matrix.reshape({rows, columns / kBlock, kBlock});
  const at::Tensor scales = blocks.abs().amax(-1).div(127);
  const at::Tensor inverse = at::where(scales.eq(0), scales, scales.reciprocal()).unsqueeze(-1);
  const at::Tensor scaled = blocks.mul(inverse);
  const at::Tensor codes = scaled.abs().add(0.5).floor().mul(scaled.sign()).to(at::kChar);
  return {8, false, codes.view({rows, columns}), scales, at::zeros_like(scales, at::kInt)};
}

double change_in_float16(const at::Tensor& scales) {
  const at::Tensor from = scales.contiguous();
  double largest = 0;
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    const double scale = from.const_data_ptr<float>()[i];
    const double half = static_cast<double>(static_cast<float>(c10::Half(static_cast<float>(scale))));
    if (!std::isfinite(half)) return std::numeric_limits<double>::infinity();
    if (scale != 0) largest = std::max(largest, std::abs(half - scale) / std::abs(scale));
  }
  return largest;
}

}  // namespace capstan
