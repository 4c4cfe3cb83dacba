#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "core/zero/block_quantization.hpp"
#include "core/zero/code_operators.hpp"
#include "core/zero/coded_parts.hpp"

namespace capstan::by_operators {
namespace {

/// Calls use(first element, rows, columns, first group) for stretches of elements that are a matrix with a group a row:
/// the rest of the first group, the whole groups, and the beginning of the last one.
template <class Use>
void for_each_matrix(std::int64_t numel, std::int64_t offset, std::int64_t group_size, Use&& use) {
  const std::int64_t before = offset % group_size;
  std::int64_t at = 0, group = 0;
  const auto one_row = [&](std::int64_t columns) {
    if (columns == 0) return;
    use(at, std::int64_t{1}, columns, group);
    at += columns;
    ++group;
  };
  if (before > 0) one_row(std::min(group_size - before, numel));
  if (const std::int64_t rows = (numel - at) / group_size; rows > 0) {
    use(at, rows, group_size, group);
    at += rows * group_size;
    group += rows;
  }
  one_row(numel - at);
}

at::Tensor matrix_of(const at::Tensor& flat, std::int64_t from, std::int64_t rows, std::int64_t columns) {
  return flat.narrow(0, from, rows * columns).view({rows, columns});
}

/// Puts numbers below 2^width, one a byte, into as few bytes as hold them; the lowest bits come first.
void pack(const at::Tensor& numbers, int width, const at::Tensor& bytes) {
  const std::int64_t each = 8 / width, whole = numbers.numel() / each, rest = numbers.numel() - whole * each;
  const auto packed = [&](const at::Tensor& rows) {
    at::Tensor sum = rows.select(1, 0).clone();
    for (std::int64_t k = 1; k < rows.size(1); ++k) sum.bitwise_or_(rows.select(1, k) * (1 << (width * k)));
    return sum;
  };
  bytes.narrow(0, 0, whole).copy_(packed(matrix_of(numbers, 0, whole, each)));
  if (rest > 0) bytes.narrow(0, whole, 1).copy_(packed(matrix_of(numbers, whole * each, 1, rest)));
}

at::Tensor unpack(const at::Tensor& bytes, int width, std::int64_t numel) {
  if (width == 8) return bytes;
  std::vector<at::Tensor> columns;
  for (int shift = 0; shift < 8; shift += width) {
    columns.push_back(bytes.bitwise_right_shift(shift).bitwise_and((1 << width) - 1));
  }
  return at::stack(columns, 1).view({-1}).narrow(0, 0, numel);
}

}  // namespace

void quantize_blocks(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                     const at::Tensor& codes) {
  const at::NoGradGuard no_grad;
  check_blocks(values, bits, block, scales, codes);
  const double half = bits == 8 ? 128 : 8;
  // One byte a code, as a signed number.
  const at::Tensor numbers =
      bits == 8 ? codes.view(at::kChar) : at::empty({values.numel()}, values.options().dtype(at::kChar));
  for_each_matrix(
      values.numel(), 0, block, [&](std::int64_t at, std::int64_t rows, std::int64_t columns, std::int64_t group) {
        const at::Tensor x = matrix_of(values, at, rows, columns);
        const at::Tensor largest = x.abs().amax({1});  // NaN where an element is
        const at::Tensor finite = largest.isfinite(), usual = finite.logical_and(largest.ge(kSmallestMagnitude));
        const at::Tensor one = at::ones_like(largest);
        const at::Tensor r = at::full_like(largest, half).div_(at::where(usual, largest, one));
        const at::Tensor scale = at::where(usual, r.reciprocal(), one);
        scales.narrow(0, group, rows)
            .copy_(at::where(finite, scale, at::full_like(largest, std::numeric_limits<double>::quiet_NaN())));
        const at::Tensor level = x.mul(r.unsqueeze(1)).round_().clamp_(-half, half - 1);
        matrix_of(numbers, at, rows, columns).copy_(at::where(usual.unsqueeze(1), level, at::zeros_like(level)));
      });
  if (bits == 4) pack(numbers.view(at::kByte).bitwise_and(15), 4, codes);
}

void dequantize_blocks(const at::Tensor& scales, const at::Tensor& codes, std::int64_t bits, std::int64_t block,
                       bool add, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  check_blocks(values, bits, block, scales, codes);
  at::Tensor numbers = bits == 8 ? codes.view(at::kChar).to(at::kFloat)
                                 : unpack(codes, 4, values.numel()).bitwise_xor(8).to(at::kFloat).sub_(8);
  for_each_matrix(values.numel(), 0, block,
                  [&](std::int64_t at, std::int64_t rows, std::int64_t columns, std::int64_t group) {
                    matrix_of(numbers, at, rows, columns).mul_(scales.narrow(0, group, rows).unsqueeze(1));
                  });
  if (add) {
    values.add_(numbers);
  } else {
    values.copy_(numbers);
  }
}

at::Tensor encode_part(const at::Tensor& values, const at::Tensor& scales, const std::optional<at::Tensor>& zero_points,
                       std::int64_t offset, std::int64_t group_size, std::int64_t bits) {
  const at::NoGradGuard no_grad;
  const CodeFormat format = check_part(values, offset, group_size, bits, zero_points.has_value());
  const Range part{offset, values.numel()};
  check_scales(format, part, scales, zero_points);
  const at::TensorOptions byte_options = values.options().dtype(at::kByte);
  const at::Tensor bytes = at::empty({format.bytes(part)}, byte_options);
  if (part.numel == 0) return bytes;
  const std::int64_t groups = format.groups_in(part);
  const at::Tensor scale = bytes.narrow(0, 0, 4 * groups).view(at::kFloat);
  scale.copy_(scales);
  const int width = format.width();
  at::Tensor shift = at::zeros_like(scale);
  if (zero_points) {
    bytes.narrow(0, 4 * groups, 4 * groups).view(at::kInt).copy_(*zero_points);
    shift.copy_(*zero_points);
  }
  shift.add_(1 << (width - 1));
  const at::Tensor numbers = at::empty({part.numel}, byte_options);
  for_each_matrix(part.numel, offset, group_size,
                  [&](std::int64_t at, std::int64_t rows, std::int64_t columns, std::int64_t group) {
                    const at::Tensor by = scale.narrow(0, group, rows).unsqueeze(1);
                    at::Tensor level = matrix_of(values, at, rows, columns).to(at::kFloat).div(by).round_();
                    level = at::where(by.ne(0), level, at::zeros_like(level));
                    level.add_(shift.narrow(0, group, rows).unsqueeze(1)).clamp_(0, (1 << width) - 1);
                    level = at::where(level.isnan(), at::zeros_like(level), level);
                    matrix_of(numbers, at, rows, columns).copy_(level);
                  });
  pack(numbers, width, bytes.narrow(0, format.scale_bytes(part), bytes.numel() - format.scale_bytes(part)));
  return bytes;
}

void decode_part(const at::Tensor& bytes, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                 bool zero_points, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const CodeFormat format = check_part(values, offset, group_size, bits, zero_points);
  const Range part{offset, values.numel()};
  check_bytes(format, part, bytes);
  if (part.numel == 0) return;
  const std::int64_t groups = format.groups_in(part), scale_bytes = format.scale_bytes(part);
  const at::Tensor scale = bytes.narrow(0, 0, 4 * groups).view(at::kFloat);
  at::Tensor numbers = unpack(bytes.narrow(0, scale_bytes, bytes.numel() - scale_bytes), format.width(), part.numel)
                           .to(at::kFloat)
                           .sub_(1 << (format.width() - 1));
  for_each_matrix(part.numel, offset, group_size,
                  [&](std::int64_t at, std::int64_t rows, std::int64_t columns, std::int64_t group) {
                    at::Tensor level = matrix_of(numbers, at, rows, columns);
                    if (zero_points) {
                      const at::Tensor zero = bytes.narrow(0, 4 * groups, 4 * groups).view(at::kInt);
                      level.sub_(zero.narrow(0, group, rows).to(at::kFloat).unsqueeze(1));
                    }
                    level.mul_(scale.narrow(0, group, rows).unsqueeze(1));
                  });
  values.copy_(numbers);
}

}  // namespace capstan::by_operators
