#include "core/compression/operand_uses.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/memory/recompute/tape.hpp"

namespace capstan {

void OperandUses::keep_states(const Compressions& compressions) {
  std::shared_ptr<const Json> now;
  for (auto& [module, uses] : uses_) {
    for (Use& use : uses) {
      if (use.states != nullptr) continue;
      if (now == nullptr) now = std::make_shared<const Json>(compressions.states());
      use.states = now;
    }
  }
}

void OperandUses::before(const Compressions& compressions, const std::string& module) {
  const auto found = uses_.find(module);
  if (found == uses_.end() || found->second.back().states != nullptr) return;
  found->second.back().states = std::make_shared<const Json>(compressions.states());
}

void OperandUses::add(const std::string& module, const at::Tensor& input) {
  uses_[module].push_back({digest_of(input), nullptr});
}

bool OperandUses::run_again(const Compressions& compressions, const std::string& module, const at::Tensor& input,
                            std::int64_t updates, at::Tensor& out) const {
  const auto found = uses_.find(module);
  const auto as_now = [&] { return compressions.operand(module, input, updates, /*training=*/false, out); };
  if (found == uses_.end()) return as_now();
  const std::vector<Use>& uses = found->second;
  if (uses.size() == 1 && uses[0].states == nullptr) return as_now();
  const Json now = compressions.states();
  const std::uint64_t digest = digest_of(input);
  const auto states = [&](const Use& use) -> const Json& { return use.states != nullptr ? *use.states : now; };
  const bool known = std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.digest == digest; });
  const Json* then = nullptr;
  for (const Use& use : uses) {
    if (known && use.digest != digest) continue;
    if (then != nullptr && !(*then == states(use))) {
      throw RuntimeFault("backward runs module '" + module + "' again, which forward has used " +
                         std::to_string(uses.size()) + " times, and its input " +
                         (known ? "is that of several of these uses" : "is that of none of these uses") +
                         ": which range it was quantised with is not known. Leave the module out of activation "
                         "checkpointing, or set range_calibration to \"dynamic\" in "
                         "compression_training.activation_quantization.");
    }
    then = &states(use);
  }
  return compressions.operand_as_then(module, input, updates, *then, out);
}

}  // namespace capstan
