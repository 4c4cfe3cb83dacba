#pragma once

#include <cstdint>

namespace capstan::accelerators {

/// A run of float32 elements, the scales of its blocks, and their codes of 8 or 4 bits, as
/// core/zero/block_quantization.hpp defines them; `block` is even for 4 bits. In the device's memory.
struct BlockCodes {
  std::int64_t numel, block;
  int bits;
};

/// Puts the kernel into a stream, a cudaStream_t. The codes and scales have the CPU's bits. Returns why it was not
/// started; null: it was.
const char* quantize_blocks(const BlockCodes& format, const float* values, float* scales, std::uint8_t* codes,
                            void* stream);
/// `add`: the values are added to those that are there.
const char* dequantize_blocks(const BlockCodes& format, const float* scales, const std::uint8_t* codes, bool add,
                              float* values, void* stream);

}  // namespace capstan::accelerators
