#include "core/memory/shapes_only.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(ShapesOnly, BuildsTensorsOfAnySizeWithoutValues) {
  const ShapesOnly shapes_only;
  const at::Tensor huge = at::empty({1 << 20, 1 << 20, 16});  // 64 TiB
  EXPECT_TRUE(huge.is_meta());
  EXPECT_EQ(huge.sizes(), at::IntArrayRef({1 << 20, 1 << 20, 16}));
  at::Tensor filled = at::ones({3, 4}, at::kBFloat16);
  filled.normal_().mul_(2).copy_(at::randn({3, 4}));
  EXPECT_TRUE(at::zeros_like(filled).is_meta());
  EXPECT_EQ(filled.scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::arange(10).numel(), 10);
}

TEST(ShapesOnly, ReadingAValueThrows) {
  const ShapesOnly shapes_only;
  EXPECT_THROW(at::ones({1}).item<float>(), std::exception);
}

TEST(ShapesOnly, EndsWithItsScope) {
  { const ShapesOnly shapes_only; }
  EXPECT_EQ(at::ones({1}).item<float>(), 1.0f);
}

}  // namespace
}  // namespace capstan
