// Capstan's operators on NVIDIA's GPUs: docs/reference/plugins/accelerator.md.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "plugins/accelerators/cuda/block_codes.hpp"

namespace capstan::accelerators {
namespace {

/// Core's front of the operators checks sizes for its own calls; Python may call them with anything.
BlockCodes checked(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
                   const at::Tensor& codes) {
  const std::int64_t numel = values.numel();
  TORCH_CHECK((bits == 8 || bits == 4) && block > 0 && (bits == 8 || block % 2 == 0),
              "bits 8 or 4, and a block of elements, an even number for 4 bits, expected, got ", bits, " and ", block,
              ".");
  TORCH_CHECK(values.is_contiguous() && scales.is_contiguous() && codes.is_contiguous() &&
                  scales.numel() == (numel + block - 1) / block &&
                  codes.numel() == (bits == 8 ? numel : (numel + 1) / 2) && scales.device() == values.device() &&
                  codes.device() == values.device(),
              "values, scales and codes: contiguous, on one device, and of sizes that fit each other expected.");
  return {numel, block, static_cast<int>(bits)};
}

void quantize(const at::Tensor& values, std::int64_t bits, std::int64_t block, const at::Tensor& scales,
              const at::Tensor& codes) {
  const BlockCodes format = checked(values, bits, block, scales, codes);
  const c10::cuda::CUDAGuard guard(values.device());
  const char* fault =
      quantize_blocks(format, values.const_data_ptr<float>(), scales.mutable_data_ptr<float>(),
                      codes.mutable_data_ptr<std::uint8_t>(), c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(fault == nullptr, "CUDA: ", fault);
}

void dequantize(const at::Tensor& scales, const at::Tensor& codes, std::int64_t bits, std::int64_t block, bool add,
                const at::Tensor& values) {
  const BlockCodes format = checked(values, bits, block, scales, codes);
  const c10::cuda::CUDAGuard guard(values.device());
  const char* fault =
      dequantize_blocks(format, scales.const_data_ptr<float>(), codes.const_data_ptr<std::uint8_t>(), add,
                        values.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(fault == nullptr, "CUDA: ", fault);
}

}  // namespace
}  // namespace capstan::accelerators

TORCH_LIBRARY_IMPL(capstan, CUDA, m) {
  m.impl("quantize_blocks", &capstan::accelerators::quantize);
  m.impl("dequantize_blocks", &capstan::accelerators::dequantize);
}
