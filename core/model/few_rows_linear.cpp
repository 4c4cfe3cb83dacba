// The operator capstan::few_rows_linear, which models call by capstan/few_rows_linear.hpp where they continue
// sequences. An operator, so that the interceptor brings it the weights that are elsewhere.

#include "capstan/few_rows_linear.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>

#include "core/model/few_rows_kernels.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kMostRows = 64;           // above them arithmetic bounds the time
constexpr std::int64_t kLeastWeights = 1 << 18;  // elements of a thread's share

std::optional<WeightType> type_of(const at::Tensor& weight) {
  switch (weight.scalar_type()) {
    case at::kFloat:
      return WeightType::kFloat;
    case at::kBFloat16:
      return WeightType::kBFloat16;
    case at::kHalf:
      return WeightType::kHalf;
    default:
      return std::nullopt;
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_neg() &&
         !tensor.is_conj();
}

/// Whether the kernels here compute it; what does not fit together is left to at::linear, which throws.
bool is_served(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool fits = is_plain(input) && is_plain(weight) && input.dim() >= 1 && weight.dim() == 2 &&
                    input.size(-1) == weight.size(1) && input.scalar_type() == weight.scalar_type() &&
                    weight.is_contiguous();
  if (!fits || weight.numel() == 0 || input.numel() == 0) return false;
  if (bias && bias->defined() && (bias->dim() != 1 || bias->size(0) != weight.size(0))) return false;
  const bool differentiates = at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad());
  return !differentiates && input.numel() / input.size(-1) <= kMostRows &&
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU);  // autocast is off
}

at::Tensor few_rows_linear_operator(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias) {
  const std::optional<WeightType> type = type_of(weight);
  if (!type || !is_served(input, weight, bias)) return at::linear(input, weight, bias);
  const at::Tensor rows = input.scalar_type() == at::kFloat ? input.contiguous() : input.to(at::kFloat).contiguous();
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor out = at::empty(shape, rows.options());
  const RowsTimesWeight call{
      rows.const_data_ptr<float>(),  weight.const_data_ptr(), *type,         out.mutable_data_ptr<float>(),
      rows.numel() / weight.size(1), weight.size(1),          weight.size(0)};
  at::parallel_for(0, call.outputs, std::max<std::int64_t>(kLeastWeights / call.width, 1),
                   [&](std::int64_t begin, std::int64_t end) { multiply_rows(call, begin, end); });
  if (bias && bias->defined()) out.add_(*bias);
  return out.scalar_type() == input.scalar_type() ? out : out.to(input.scalar_type());
}

}  // namespace
}  // namespace capstan

TORCH_LIBRARY_FRAGMENT(capstan, m) {
  m.def("few_rows_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        &capstan::few_rows_linear_operator);
}
