#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/compression/operand_uses.hpp"
#include "core/memory/forward_rerun.hpp"
#include "core/memory/interceptor.hpp"

namespace capstan {

/// Gives the operators that use the weights of planned modules compressed inputs. A module is known by the storage of
/// its parameter `weight`. Several threads may run operators of one pass: inputs are made one at a time. [engine]
///
/// Operators that autograd runs again get the inputs that they had in forward. Those of autograd's own are left alone.
class OperandInputs final : public OperatorPolicy {
 public:
  /// `rerun`: null where autograd runs no operator of a forward again.
  OperandInputs(const Compressions& compressions, const std::vector<NamedTensor>& parameters,
                ForwardRerun* rerun = nullptr);

  /// Called before a forward, and before Compressions::begin_micro_batch(). `first`: no other forward that trains waits
  /// for its backward.
  void begin(std::int64_t updates, bool training, bool first = true);
  /// Planned modules whose weights no operator has used so far.
  std::vector<std::string> unused() const;

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void after(const c10::OperatorHandle&) noexcept override {}

 private:
  /// Where an operator takes its input and its weight; input < 0: it has none.
  struct Places {
    int input = -1, weight = -1;
  };
  const Places& places_of(const c10::OperatorHandle& op);
  /// Fills `out` with the input of a use of the module; false: nothing changes.
  bool make(const std::string& module, const at::Tensor& input, bool again, at::Tensor& out);

  const Compressions& compressions_;
  ForwardRerun* rerun_;
  /// Where a weight lies in its storage, in elements.
  struct Weight {
    std::int64_t begin, end;
    std::string module;
  };
  const std::string* module_of(const at::Tensor& weight) const;

  std::unordered_multimap<const void*, Weight> weights_;  // by their storages
  std::mutex mutex_;                                      // guards what follows, and the components' inputs
  std::unordered_map<const void*, Places> operators_;     // by their schemas
  std::set<std::string> unused_;
  OperandUses uses_;  // of forwards that wait for their backward
  std::int64_t updates_ = 0;
  bool training_ = true;
};

}  // namespace capstan
