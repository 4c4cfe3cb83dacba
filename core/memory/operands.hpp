#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

#include "core/memory/interceptor.hpp"

namespace capstan {

/// Calls `see(operand, argument)` for every tensor among an operator's arguments, the last `argument_count` entries of
/// the stack, those in lists included.
template <typename See>
void for_each_operand(const OperatorStack& stack, std::size_t argument_count, const See& see) {
  for (std::size_t i = 0; i < argument_count; ++i) {
    const c10::IValue& value = stack[stack.size() - argument_count + i];
    if (value.isTensor()) {
      see(value.toTensor(), i);
    } else if (value.isTensorList()) {
      for (const at::Tensor& operand : value.toTensorVector()) see(operand, i);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& operand : value.toOptionalTensorVector()) {
        if (operand) see(*operand, i);
      }
    }
  }
}

}  // namespace capstan
