#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/zero/block_format.hpp"
#include "core/zero/coded_parts.hpp"

/// Codes as operators of LibTorch's dispatcher, which a plugin may register for its device:
///
///     capstan::quantize_blocks(Tensor values, int bits, int block, *, Tensor(a!) scales, Tensor(b!) codes) -> ()
///     capstan::dequantize_blocks(Tensor scales, Tensor codes, int bits, int block, bool add, *, Tensor(a!) values) ->
///     () capstan::encode_part(Tensor values, Tensor scales, Tensor? zero_points, int offset, int group_size, int bits)
///         -> Tensor
///     capstan::decode_part(Tensor bytes, int offset, int group_size, int bits, bool zero_points, *,
///                          Tensor(a!) values) -> ()
///
/// The CPU has kernels of its own. Any other device computes by LibTorch's operators, with the bits of the CPU.
/// Arguments that do not fit each other raise c10::Error.
namespace capstan {

/// quantize() of core/zero/block_quantization.hpp for float32 `values`, one dimension: fills `scales`, float32
/// [format.blocks()], and `codes`, uint8 [format.code_bytes()]. All are contiguous and on one device.
void quantize_blocks(const BlockFormat& format, const at::Tensor& values, const at::Tensor& scales,
                     const at::Tensor& codes);
/// dequantize(), and with `add` add_dequantized().
void dequantize_blocks(const BlockFormat& format, const at::Tensor& scales, const at::Tensor& codes, bool add,
                       const at::Tensor& values);

/// Raise c10::Error where arguments of a kernel do not fit each other.
void check_blocks(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                  const at::Tensor& codes);
CodeFormat check_part(const at::Tensor& values, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                      bool zero_points);
void check_scales(const CodeFormat& format, const Range& part, const at::Tensor& scales,
                  const std::optional<at::Tensor>& zero_points);
void check_bytes(const CodeFormat& format, const Range& part, const at::Tensor& bytes);

/// The CPU's kernels of encode_part and decode_part.
at::Tensor encode_on_cpu(const at::Tensor& values, const at::Tensor& scales,
                         const std::optional<at::Tensor>& zero_points, std::int64_t offset, std::int64_t group_size,
                         std::int64_t bits);
void decode_on_cpu(const at::Tensor& bytes, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                   bool zero_points, const at::Tensor& values);

/// The kernels of devices that have none of their own.
namespace by_operators {

void quantize_blocks(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                     const at::Tensor& codes);
void dequantize_blocks(const at::Tensor& scales, const at::Tensor& codes, std::int64_t bits, std::int64_t block,
                       bool add, const at::Tensor& values);
at::Tensor encode_part(const at::Tensor& values, const at::Tensor& scales, const std::optional<at::Tensor>& zero_points,
                       std::int64_t offset, std::int64_t group_size, std::int64_t bits);
void decode_part(const at::Tensor& bytes, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                 bool zero_points, const at::Tensor& values);

}  // namespace by_operators
}  // namespace capstan
