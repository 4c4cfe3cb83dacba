#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/attention/block_sparse.hpp"
#include "core/memory/interceptor.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// Stands in for aten::scaled_dot_product_attention and capstan::attention with the layout of the configuration. A
/// causal call stays causal whatever the layout. Calls that cannot be sparse stay dense.
class SparseAttention final : public OperatorPolicy {
 public:
  /// `where`: the key that chose the layout, for messages. `seed`: of the run.
  SparseAttention(Component layouts, Component kernel, std::string where, std::uint64_t seed);

  void before(const c10::OperatorHandle&, OperatorStack&, std::size_t) override {}
  void after(const c10::OperatorHandle&) noexcept override {}
  bool stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;

  /// From here to end_forward() calls are counted.
  void begin_forward();
  /// The first time: throws RuntimeFault where no call was sparse; else gives what there is to say of the calls, one
  /// sentence or none. Later: nothing.
  std::optional<std::string> end_forward();

 private:
  struct Call;
  /// The arguments of an operator that computes attention; none: another operator.
  static std::optional<Call> call_of(const c10::OperatorHandle& op, const OperatorStack& stack,
                                     std::size_t argument_count);
  /// Why a call stays dense; empty: it does not.
  std::string dense_reason(const Call& call) const;
  at::Tensor attend(const Call& call);
  std::shared_ptr<const PreparedLayout> layout_for(std::int64_t heads, std::int64_t tokens, bool causal);

  Component layouts_;
  std::shared_ptr<const Component> kernel_;
  std::string where_;
  std::uint64_t seed_;
  std::mutex mutex_;  // of the layouts: operators run again on autograd's threads
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, std::shared_ptr<const PreparedLayout>> prepared_;
  bool counting_ = false, told_ = false;
  bool halved_ = false;             // a causal call has left half of a layout out
  std::int64_t calls_ = 0;          // of the forward
  std::vector<std::string> dense_;  // calls that stayed dense: "call 3 has dropout 0.1"
};

}  // namespace capstan
