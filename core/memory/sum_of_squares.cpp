#include "core/memory/sum_of_squares.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/errors.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/memory/sum_of_squares.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight partial sums whatever the vector's width, so that every CPU gives the same result.
constexpr std::size_t kLanes = 8;

double square_block_f32(const float* values, std::size_t count) {
  const hn::CappedTag<double, kLanes> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  alignas(64) double partial[kLanes] = {};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t lane = 0; lane < kLanes; lane += lanes) {
    auto sum = hn::Zero(wide);
    for (std::size_t i = 0; i < whole; i += kLanes) {
      const auto value = hn::PromoteTo(wide, hn::LoadU(narrow, values + i + lane));
      // Exact products of two floats fit a double, so MulAdd and Mul plus Add round the same.
      sum = hn::MulAdd(value, value, sum);
    }
    hn::StoreU(sum, wide, partial + lane);
  }
  for (std::size_t i = whole; i < count; ++i) {
    partial[i - whole] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
         ((partial[4] + partial[5]) + (partial[6] + partial[7]));
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {
namespace {

HWY_EXPORT(square_block_f32);

constexpr std::int64_t kBlock = kSquareBlock;

struct Block {
  const at::Tensor* tensor;
  std::int64_t begin, count;
};

double square_block(const Block& block) {
  const auto square_floats = HWY_DYNAMIC_DISPATCH(square_block_f32);
  const auto count = static_cast<std::size_t>(block.count);
  const at::Tensor& tensor = *block.tensor;
  if (tensor.scalar_type() == at::kFloat) {
    return square_floats(static_cast<const float*>(tensor.const_data_ptr()) + block.begin, count);
  }
  float widened[kBlock];
  if (tensor.scalar_type() == at::kBFloat16) {
    const auto* values = static_cast<const at::BFloat16*>(tensor.const_data_ptr()) + block.begin;
    std::copy(values, values + count, widened);
  } else if (tensor.scalar_type() == at::kHalf) {
    const auto* values = static_cast<const at::Half*>(tensor.const_data_ptr()) + block.begin;
    std::copy(values, values + count, widened);
  } else {
    throw RuntimeFault(std::string("gradient norm: float32, bfloat16 or float16 expected, found ") +
                       c10::toString(tensor.scalar_type()) + ".");
  }
  return square_floats(widened, count);
}

}  // namespace

std::vector<double> sums_of_squares(const std::vector<const at::Tensor*>& tensors) {
  std::vector<Block> blocks;
  blocks.reserve(tensors.size());
  for (const at::Tensor* tensor : tensors) {
    for (std::int64_t begin = 0; begin < tensor->numel(); begin += kBlock) {
      blocks.push_back({tensor, begin, std::min(kBlock, tensor->numel() - begin)});
    }
  }
  std::vector<double> sums(blocks.size());
  const auto sum_range = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) sums[i] = square_block(blocks[i]);
  };
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 16, sum_range);
  return sums;
}

double sum_of_squares(const std::vector<const at::Tensor*>& tensors) {
  double total = 0;
  for (const double sum : sums_of_squares(tensors)) total += sum;
  return total;
}

}  // namespace capstan
#endif
