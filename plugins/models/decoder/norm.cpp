#include "norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>

#include "../by_rows.hpp"
#include "capstan/decode_attention.hpp"

namespace capstan::models {

DecoderNorm::DecoderNorm(std::int64_t width, NormKind kind, double eps) : width_(width), kind_(kind), eps_(eps) {
  if (kind == NormKind::kPlain) return;
  weight_ = register_parameter("weight", kind == NormKind::kRmsPlusOne ? at::zeros({width}) : at::ones({width}));
  if (kind == NormKind::kLayerNorm) bias_ = register_parameter("bias", at::zeros({width}));
}

at::Tensor DecoderNorm::forward(const at::Tensor& x) const {
  const auto dtype = x.scalar_type();
  switch (kind_) {
    case NormKind::kLayerNorm:
      return at::layer_norm(x, {width_}, weight_, bias_, eps_);
    case NormKind::kPlain:
      return at::layer_norm(x.to(at::kFloat), {width_}, {}, {}, eps_).to(dtype);
    case NormKind::kRmsCast:
      return (weight_ * at::rms_norm(x.to(at::kFloat), {width_}, {}, eps_)).to(dtype);
    case NormKind::kRmsPlusOne:
      return (at::rms_norm(x.to(at::kFloat), {width_}, {}, eps_) * (1.0 + weight_.to(at::kFloat))).to(dtype);
    default:
      return weight_ * at::rms_norm(x, {width_}, {}, eps_);
  }
}

at::Tensor DecoderNorm::decode(const at::Tensor& x) const {
  if (kind_ == NormKind::kRms && serves_decode_attention(x)) return few_rows_rms_norm(x, weight_, eps_);
  return by_rows(x, [this](const at::Tensor& row) { return forward(row); });
}

}  // namespace capstan::models
