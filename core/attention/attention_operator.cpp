// The operator capstan::attention, which models call by capstan/attention.hpp. An operator, so that interceptors see
// it.

#include <torch/library.h>

#include "capstan/attention.hpp"

namespace capstan {
namespace {

MaskMode mode_of(bool multiplies) { return multiplies ? MaskMode::kMultiply : MaskMode::kAdd; }

at::Tensor attention_operator(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const std::optional<at::Tensor>& key_padding_mask, bool key_padding_mask_multiplies,
                              const std::optional<at::Tensor>& attn_mask, bool attn_mask_multiplies,
                              const std::optional<at::Tensor>& relative_position, std::optional<double> scale,
                              bool causal) {
  AttentionOptions options;
  options.key_padding_mask = key_padding_mask.value_or(at::Tensor());
  options.key_padding_mask_mode = mode_of(key_padding_mask_multiplies);
  options.attn_mask = attn_mask.value_or(at::Tensor());
  options.attn_mask_mode = mode_of(attn_mask_multiplies);
  options.relative_position = relative_position.value_or(at::Tensor());
  options.scale = scale;
  options.causal = causal;
  return sdk::dense_attention(q, k, v, options);
}

}  // namespace
}  // namespace capstan

TORCH_LIBRARY(capstan, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? key_padding_mask=None, bool key_padding_mask_multiplies=False, "
      "Tensor? attn_mask=None, bool attn_mask_multiplies=True, Tensor? relative_position=None, float? scale=None, "
      "bool is_causal=False) -> Tensor",
      &capstan::attention_operator);
}
