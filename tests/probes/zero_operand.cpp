#include <ATen/core/Tensor.h>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/observer.hpp"

namespace capstan::probes {

/// Operand rewriting: operators that read one parameter get zeros.
class ZeroOperand {
 public:
  ZeroOperand(sdk::Host, const sdk::Params& params) : parameter_(params.text("parameter")) {}

  capstan_tensor rewrite_operand(std::string_view, std::string_view parameter, capstan_tensor operand) {
    return parameter == parameter_ ? sdk::give(sdk::borrow(operand).mul(0)) : nullptr;
  }

 private:
  std::string parameter_;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::probes::ZeroOperand, "ZeroOperand">)
