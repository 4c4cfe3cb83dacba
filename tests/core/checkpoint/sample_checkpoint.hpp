#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan::test {

/// A small checkpoint whose numbers follow from `number`.
inline CheckpointContents sample_checkpoint(int number, std::int64_t rows = 3) {
  const auto values = [&](std::int64_t count, at::ScalarType type) {
    return at::arange(count, at::kFloat).add(number).to(type);
  };
  CheckpointContents contents;
  contents.tensors = {{"layer.weight", "param", {rows, 4}, 0, values(rows * 4, at::kFloat).view({rows, 4})},
                      {"layer.weight", "exp_avg", {rows, 4}, 0, values(rows * 4, at::kFloat)},
                      {"layer.bias", "param", {5}, 0, values(5, at::kBFloat16)},
                      {"layer.seen", "buffer", {}, 0, values(1, at::kLong)},
                      {"", "flat", {10}, 0, values(4, at::kDouble)},
                      {"", "flat", {10}, 4, values(6, at::kDouble)}};
  contents.state["global_steps"] = number;
  contents.state["best_loss"] = 0.1 * number;
  return contents;
}

inline void expect_equal(const CheckpointContents& found, const CheckpointContents& expected) {
  EXPECT_EQ(found.state, expected.state);
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    const auto &a = found.tensors[i], &b = expected.tensors[i];
    EXPECT_EQ(a.parameter, b.parameter);
    EXPECT_EQ(a.state, b.state);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.offset, b.offset);
    EXPECT_EQ(a.values.scalar_type(), b.values.scalar_type());
    EXPECT_TRUE(at::equal(a.values.reshape({-1}), b.values.reshape({-1}))) << a.parameter << " " << a.state;
  }
}

}  // namespace capstan::test
