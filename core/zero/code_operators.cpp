#include "core/zero/code_operators.hpp"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/zero/block_quantization.hpp"
#include "core/zero/coded_parts.hpp"

namespace capstan {
namespace {

void quantize_on_cpu(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                     const at::Tensor& codes) {
  check_blocks(values, bits, block, scales, codes);
  quantize({static_cast<int>(bits), values.numel(), block}, values.const_data_ptr<float>(),
           scales.mutable_data_ptr<float>(), codes.mutable_data_ptr<std::uint8_t>());
}

void dequantize_on_cpu(const at::Tensor& scales, const at::Tensor& codes, std::int64_t bits, std::int64_t block,
                       bool add, const at::Tensor& values) {
  check_blocks(values, bits, block, scales, codes);
  const BlockFormat format{static_cast<int>(bits), values.numel(), block};
  (add ? add_dequantized : dequantize)(format, scales.const_data_ptr<float>(), codes.const_data_ptr<std::uint8_t>(),
                                       values.mutable_data_ptr<float>());
}

/// A flat tensor of that type, with so many elements, in one piece of memory.
void check_flat(const char* name, const at::Tensor& tensor, at::ScalarType type, std::int64_t numel) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.is_contiguous() && tensor.numel() == numel, name, ": ",
              c10::toString(type), " [", numel, "], contiguous, expected, found ", tensor.toString(), " ",
              tensor.sizes(), ".");
}

template <class Function>
c10::TypedOperatorHandle<Function> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace

void check_blocks(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                  const at::Tensor& codes) {
  TORCH_CHECK(bits == 8 || bits == 4, "bits: 8 or 4, got ", bits, ".");
  TORCH_CHECK(block > 0 && (bits == 8 || block % 2 == 0), "block: elements, an even number for 4 bits, got ", block,
              ".");
  const BlockFormat format{static_cast<int>(bits), values.numel(), block};
  check_flat("values", values, at::kFloat, values.numel());
  check_flat("scales", scales, at::kFloat, format.blocks());
  check_flat("codes", codes, at::kByte, format.code_bytes());
}

CodeFormat check_part(const at::Tensor& values, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                      bool zero_points) {
  TORCH_CHECK(bits >= 1 && bits <= 8, "bits: 1 to 8, got ", bits, ".");
  TORCH_CHECK(offset >= 0 && group_size > 0, "offset and group_size: elements, got ", offset, " and ", group_size, ".");
  TORCH_CHECK(at::isFloatingType(values.scalar_type()) && values.element_size() <= 4,
              "values: float32, bfloat16 or float16 expected, found ", values.toString(), ".");
  check_flat("values", values, values.scalar_type(), values.numel());
  return {group_size, static_cast<int>(bits), zero_points};
}

void check_scales(const CodeFormat& format, const Range& part, const at::Tensor& scales,
                  const std::optional<at::Tensor>& zero_points) {
  check_flat("scales", scales, at::kFloat, format.groups_in(part));
  if (zero_points) check_flat("zero_points", *zero_points, at::kInt, format.groups_in(part));
}

void check_bytes(const CodeFormat& format, const Range& part, const at::Tensor& bytes) {
  check_flat("bytes", bytes, at::kByte, format.bytes(part));
}

void quantize_blocks(const BlockFormat& format, const at::Tensor& values, const at::Tensor& scales,
                     const at::Tensor& codes) {
  static const auto call = operator_named<decltype(quantize_on_cpu)>("capstan::quantize_blocks");
  call.call(values, format.bits, format.block, scales, codes);
}

void dequantize_blocks(const BlockFormat& format, const at::Tensor& scales, const at::Tensor& codes, bool add,
                       const at::Tensor& values) {
  static const auto call = operator_named<decltype(dequantize_on_cpu)>("capstan::dequantize_blocks");
  call.call(scales, codes, format.bits, format.block, add, values);
}

at::Tensor encode_part(const PartScales& made, const Range& part, const at::Tensor& values) {
  // A rank without elements of a parameter has no scales of it.
  if (part.numel == 0) return at::empty({0}, values.options().dtype(at::kByte));
  static const auto call = operator_named<decltype(encode_on_cpu)>("capstan::encode_part");
  const auto there = [&](const at::Tensor& numbers) { return numbers.to(values.device()); };
  std::optional<at::Tensor> zero_points;
  if (made.format.zero_points) zero_points = there(made.zero_points);
  return call.call(values, there(made.scales), zero_points, part.offset, made.format.group_size, made.format.bits);
}

void decode_part(const CodeFormat& format, const Range& part, const at::Tensor& bytes, const at::Tensor& values) {
  static const auto call = operator_named<decltype(decode_on_cpu)>("capstan::decode_part");
  call.call(bytes, part.offset, format.group_size, format.bits, format.zero_points, values);
}

}  // namespace capstan

TORCH_LIBRARY_FRAGMENT(capstan, m) {
  m.def("quantize_blocks(Tensor values, int bits, int block, *, Tensor(a!) scales, Tensor(b!) codes) -> ()");
  m.def("dequantize_blocks(Tensor scales, Tensor codes, int bits, int block, bool add, *, Tensor(a!) values) -> ()");
  m.def(
      "encode_part(Tensor values, Tensor scales, Tensor? zero_points, int offset, int group_size, int bits) -> Tensor");
  m.def(
      "decode_part(Tensor bytes, int offset, int group_size, int bits, bool zero_points, *, Tensor(a!) values) -> ()");
}

TORCH_LIBRARY_IMPL(capstan, CPU, m) {
  m.impl("quantize_blocks", &capstan::quantize_on_cpu);
  m.impl("dequantize_blocks", &capstan::dequantize_on_cpu);
  m.impl("encode_part", &capstan::encode_on_cpu);
  m.impl("decode_part", &capstan::decode_on_cpu);
}

TORCH_LIBRARY_IMPL(capstan, CompositeExplicitAutograd, m) {
  m.impl("quantize_blocks", &capstan::by_operators::quantize_blocks);
  m.impl("dequantize_blocks", &capstan::by_operators::dequantize_blocks);
  m.impl("encode_part", &capstan::by_operators::encode_part);
  m.impl("decode_part", &capstan::by_operators::decode_part);
}
