#include "core/memory/sum_of_squares.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
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

// Eight partial sums whatever the vector's width, and no rounding that depends on the CPU.
constexpr std::size_t kLanes = 8;

/// Adds values[i]^2 to partial sum i % 8, in order, in double and in single precision; count is a multiple of 8.
void add_squares(const float* values, std::size_t count, double* exact, float* rounded) {
  const hn::CappedTag<double, kLanes> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  for (std::size_t lane = 0; lane < kLanes; lane += lanes) {
    auto exact_sum = hn::LoadU(wide, exact + lane);
    auto rounded_sum = hn::LoadU(narrow, rounded + lane);
    for (std::size_t i = 0; i < count; i += kLanes) {
      const auto value = hn::LoadU(narrow, values + i + lane);
      const auto wide_value = hn::PromoteTo(wide, value);
      // Exact products of two floats fit a double, so MulAdd and Mul plus Add round the same.
      exact_sum = hn::MulAdd(wide_value, wide_value, exact_sum);
      rounded_sum = hn::Add(rounded_sum, hn::Mul(value, value));
    }
    hn::StoreU(exact_sum, wide, exact + lane);
    hn::StoreU(rounded_sum, narrow, rounded + lane);
  }
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {
namespace {

HWY_EXPORT(add_squares);

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kPiece =
    4096;  // elements: 16 KiB stay in the first-level cache while they are widened and summed
// Below this sum of a block, squares may have been lost to the smallest float.
constexpr float kFloatHoldsFrom = 1e-25f;

struct Block {
  const at::Tensor* tensor;
  std::int64_t begin, count;
};

const float* widened(const float* values, std::int64_t, float*) { return values; }
template <class Element>
const float* widened(const Element* values, std::int64_t count, float* buffer) {
  std::copy(values, values + count, buffer);
  return buffer;
}

template <class Element>
SumOfSquares sum_of_block(const Element* values, std::int64_t count) {
  const auto add = HWY_DYNAMIC_DISPATCH(add_squares);
  float buffer[kPiece];
  double exact[kLanes] = {};
  float rounded[kLanes] = {};
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t begin = 0; begin < whole; begin += kPiece) {
    const std::int64_t length = std::min(kPiece, whole - begin);
    add(widened(values + begin, length, buffer), static_cast<std::size_t>(length), exact, rounded);
  }
  SumOfSquares sum;
  float rounded_sum = 0;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    sum.exact += exact[lane];
    rounded_sum += rounded[lane];
  }
  for (std::int64_t i = whole; i < count; ++i) {
    const auto value = static_cast<float>(values[i]);
    sum.exact += static_cast<double>(value) * value;
    rounded_sum += value * value;
  }
  sum.rounded = rounded_sum >= kFloatHoldsFrom && std::isfinite(rounded_sum) ? rounded_sum : sum.exact;
  return sum;
}

SumOfSquares sum_of_block(const Block& block) {
  const void* values = block.tensor->const_data_ptr();
  switch (block.tensor->scalar_type()) {
    case at::kFloat:
      return sum_of_block(static_cast<const float*>(values) + block.begin, block.count);
    case at::kBFloat16:
      return sum_of_block(static_cast<const at::BFloat16*>(values) + block.begin, block.count);
    case at::kHalf:
      return sum_of_block(static_cast<const at::Half*>(values) + block.begin, block.count);
    default:
      throw RuntimeFault(std::string("gradient norm: float32, bfloat16 or float16 expected, found ") +
                         c10::toString(block.tensor->scalar_type()) + ".");
  }
}

}  // namespace

// The memory is kept: allocating it in each step makes malloc sort all that was freed since, which takes longer than
// the sums of small tensors.
const std::vector<SumOfSquares>& sums_on_host(const std::vector<const at::Tensor*>& tensors, std::int64_t block) {
  thread_local std::vector<Block> kept_blocks;
  thread_local std::vector<SumOfSquares> kept_sums;
  std::vector<Block>& blocks = kept_blocks;
  std::vector<SumOfSquares>& sums = kept_sums;
  blocks.clear();
  for (const at::Tensor* tensor : tensors) {
    const std::int64_t numel = tensor->numel(), length = block > 0 ? block : numel;
    for (std::int64_t begin = 0; begin < numel; begin += length) {
      blocks.push_back({tensor, begin, std::min(length, numel - begin)});
    }
  }
  sums.resize(blocks.size());
  const auto sum_range = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) sums[i] = sum_of_block(blocks[i]);
  };
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 2, sum_range);
  return sums;
}

}  // namespace capstan
#endif
