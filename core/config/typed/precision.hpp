#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0: dynamic
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool auto_cast = false;
  bool fp16_master_weights_and_grads = false;
  bool operator==(const Fp16Config&) const = default;
};

struct Bf16Config {
  bool enabled = false;
  bool immediate_grad_update = false;
  bool check_grad_overflow = true;
  bool bf16_master_weights_and_grads = false;
  bool bf16_optimizer_states = false;
  bool operator==(const Bf16Config&) const = default;
};

/// amp: what is absent follows from opt_level.
struct AmpConfig {
  bool enabled = false;
  std::string opt_level = "O1";
  Json cast_model_type, cast_model_outputs;
  std::optional<bool> keep_batchnorm_fp32, master_weights, patch_torch_functions;
  Json loss_scale;  // a number or "dynamic"
  std::optional<double> min_loss_scale, max_loss_scale;
  std::optional<std::int64_t> num_losses, verbosity;
  bool operator==(const AmpConfig&) const = default;
};

struct TorchAutocastConfig {
  bool enabled = false;
  std::string dtype;  // empty: the model's
  std::vector<std::string> lower_precision_safe_modules;
  bool operator==(const TorchAutocastConfig&) const = default;
};

/// data_types, as written; PrecisionConfig has what follows from it.
struct DataTypesConfig {
  std::optional<std::string> grad_accum_dtype, param_dtype, buffer_dtype;
  std::optional<std::vector<std::string>> keep_in_fp32_modules;  // absent: "auto"
  bool operator==(const DataTypesConfig&) const = default;
};

Fp16Config read_fp16(const SectionValues& section);
Bf16Config read_bf16(const SectionValues& section);
AmpConfig read_amp(const SectionValues& section);
TorchAutocastConfig read_torch_autocast(const SectionValues& section);
DataTypesConfig read_data_types(const SectionValues& section);

}  // namespace capstan
