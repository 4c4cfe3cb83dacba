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
#include "core/memory/interceptor.hpp"

namespace capstan {

/// Gives the operators that use the weights of planned modules compressed inputs. A module is known by the storage of
/// its parameter `weight`. Several threads may run operators of one pass: inputs are made one at a time. [engine]
class OperandInputs final : public OperatorPolicy {
 public:
  OperandInputs(const Compressions& compressions, const std::vector<NamedTensor>& parameters);

  /// Called before a forward.
  void begin(std::int64_t updates, bool training);
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

  const Compressions& compressions_;
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
  std::int64_t updates_ = 0;
  bool training_ = true;
};

}  // namespace capstan
