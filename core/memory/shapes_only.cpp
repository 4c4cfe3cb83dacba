#include "core/memory/shapes_only.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

namespace capstan {

void ShapesOnlyPolicy::before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < argument_count; ++i) {
    // Every factory of LibTorch calls it so.
    if (arguments[i].name() != "device") continue;
    stack[stack.size() - argument_count + i] = c10::Device(c10::kMeta);
  }
}

}  // namespace capstan
