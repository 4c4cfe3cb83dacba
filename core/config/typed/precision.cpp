#include "core/config/typed/precision.hpp"

namespace capstan {

Fp16Config read_fp16(const SectionValues& section) {
  Fp16Config to;
  section.read({{"enabled", &to.enabled},
                {"loss_scale", &to.loss_scale},
                {"initial_scale_power", &to.initial_scale_power},
                {"loss_scale_window", &to.loss_scale_window},
                {"hysteresis", &to.hysteresis},
                {"consecutive_hysteresis", &to.consecutive_hysteresis},
                {"min_loss_scale", &to.min_loss_scale},
                {"auto_cast", &to.auto_cast},
                {"fp16_master_weights_and_grads", &to.fp16_master_weights_and_grads}});
  return to;
}

Bf16Config read_bf16(const SectionValues& section) {
  Bf16Config to;
  section.read({{"enabled", &to.enabled},
                {"immediate_grad_update", &to.immediate_grad_update},
                {"check_grad_overflow", &to.check_grad_overflow},
                {"bf16_master_weights_and_grads", &to.bf16_master_weights_and_grads},
                {"bf16_optimizer_states", &to.bf16_optimizer_states}});
  return to;
}

AmpConfig read_amp(const SectionValues& section) {
  AmpConfig to;
  section.read({{"enabled", &to.enabled},
                {"opt_level", &to.opt_level},
                {"cast_model_type", &to.cast_model_type},
                {"keep_batchnorm_fp32", &to.keep_batchnorm_fp32},
                {"master_weights", &to.master_weights},
                {"loss_scale", &to.loss_scale},
                {"min_loss_scale", &to.min_loss_scale},
                {"max_loss_scale", &to.max_loss_scale},
                {"patch_torch_functions", &to.patch_torch_functions},
                {"cast_model_outputs", &to.cast_model_outputs},
                {"num_losses", &to.num_losses},
                {"verbosity", &to.verbosity}});
  return to;
}

TorchAutocastConfig read_torch_autocast(const SectionValues& section) {
  TorchAutocastConfig to;
  section.read({{"enabled", &to.enabled},
                {"dtype", &to.dtype},
                {"lower_precision_safe_modules", &to.lower_precision_safe_modules}});
  return to;
}

DataTypesConfig read_data_types(const SectionValues& section) {
  DataTypesConfig to;
  section.read({{"grad_accum_dtype", &to.grad_accum_dtype},
                {"param_dtype", &to.param_dtype},
                {"buffer_dtype", &to.buffer_dtype},
                {"keep_in_fp32_modules", &to.keep_in_fp32_modules}});
  return to;
}

}  // namespace capstan
