#include "core/memory/vector_math.hpp"

#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

#include "core/host_tensor.hpp"

namespace capstan {

void prepare_vector_math() {
  // MKL computes these functions of ATen/cpu/vml.h. LibTorch computes eight elements in the calling thread.
  static const bool prepared = [] {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = host_full({8}, 0.5, type);
      for (auto* function : {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log,
                             at::log10, at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc}) {
        function(x);
      }
    }
    return true;
  }();
  static_cast<void>(prepared);
}

}  // namespace capstan
