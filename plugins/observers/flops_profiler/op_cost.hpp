#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string_view>

namespace capstan::profiler {

/// What the engine says that it computes within an operator of attention, in that operator's place.
inline constexpr std::string_view kSparseAttention = "capstan::block_sparse_attention";

/// What an operator computes: `macs` multiply-accumulates, `flops` floating-point operations, of which a
/// multiply-accumulate is two. The second pair is per element of the operator's (first) result.
struct OpCost {
  double flops = 0, macs = 0;
  double flops_per_output = 0, macs_per_output = 0;
  bool needs_output() const { return flops_per_output != 0 || macs_per_output != 0; }
};

/// The cost of one call of "aten::linear", "aten::convolution_backward" ... by its arguments; nothing for an operator
/// that is not counted as a whole: what it calls inside itself is looked at instead.
std::optional<OpCost> cost_of(std::string_view name, c10::ArrayRef<c10::IValue> arguments);

}  // namespace capstan::profiler
