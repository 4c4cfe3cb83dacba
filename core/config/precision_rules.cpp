#include <string>
#include <string_view>

#include "core/config/rules.hpp"
#include "core/config/value.hpp"

namespace capstan {
namespace {

/// "torch.half", "fp16" and "float16" are one type; "" when the text is none.
std::string canonical_dtype(std::string_view text) {
  if (text.starts_with("torch.")) text.remove_prefix(6);
  if (text == "fp16" || text == "float16" || text == "half") return "float16";
  if (text == "bf16" || text == "bfloat16") return "bfloat16";
  if (text == "fp32" || text == "float32" || text == "float") return "float32";
  return std::string(text);
}

std::string model_dtype(const PrecisionConfig& precision) {
  switch (precision.compute) {
    case Precision::kFp16:
      return "float16";
    case Precision::kBf16:
      return "bfloat16";
    case Precision::kFp32:
      break;
  }
  return "float32";
}

void check_loss_scale(const Effective& values, Problems& problems) {
  if (values.number("fp16.loss_scale") != 0) return;
  for (const char* key : {"fp16.loss_scale_window", "fp16.min_loss_scale"}) {
    const Json* value = values.find(key);
    if (value && value->is_number() && value->as_number() <= 0) {
      problems.error(key,
                     "must be above 0 while the loss scale is dynamic (fp16.loss_scale 0), got " + shown(*value) + ".");
    }
  }
  if (const auto power = values.integer("fp16.initial_scale_power"); power > 127) {
    problems.error("fp16.initial_scale_power",
                   "2 to the power " + std::to_string(power) + " is beyond what a 32-bit float holds; 16 is usual.");
  }
}

}  // namespace

PrecisionConfig resolve_precision(const Effective& values, Problems& problems) {
  PrecisionConfig precision;
  precision.compute = values.flag("fp16.enabled")   ? Precision::kFp16
                      : values.flag("bf16.enabled") ? Precision::kBf16
                                                    : Precision::kFp32;
  precision.check_grad_overflow = values.flag("bf16.check_grad_overflow");
  precision.loss_scale = values.number("fp16.loss_scale");
  precision.initial_scale_power = static_cast<int>(values.integer("fp16.initial_scale_power", 16));
  precision.loss_scale_window = values.integer("fp16.loss_scale_window", 1000);
  precision.hysteresis = static_cast<int>(std::min<std::int64_t>(values.integer("fp16.hysteresis", 2), 1'000'000'000));
  precision.consecutive_hysteresis = values.flag("fp16.consecutive_hysteresis");
  precision.min_loss_scale = values.number("fp16.min_loss_scale", 1);
  check_loss_scale(values, problems);

  const std::string model = model_dtype(precision);
  precision.grad_accum_dtype = canonical_dtype(values.text("data_types.grad_accum_dtype"));
  if (precision.grad_accum_dtype.empty()) precision.grad_accum_dtype = model;
  if (precision.grad_accum_dtype == "int8") {
    problems.error("data_types.grad_accum_dtype", "gradients cannot accumulate in int8. Use fp32, bf16 or fp16.");
  }
  if (values.flag("amp.enabled") && precision.grad_accum_dtype != model) {
    problems.error(
        "data_types.grad_accum_dtype",
        precision.grad_accum_dtype + " does not go with amp, whose gradients have the model's type, " + model + ".");
  }
  precision.buffer_dtype = canonical_dtype(values.text("data_types.buffer_dtype"));
  if (precision.buffer_dtype == "int8") {
    problems.error("data_types.buffer_dtype", "floating-point buffers cannot become int8. Use fp32, bf16 or fp16.");
  }
  const std::string parameter = canonical_dtype(values.text("data_types.param_dtype"));
  if (!parameter.empty() && parameter != model) {
    const std::string remedy = parameter == "float16"    ? "set fp16.enabled"
                               : parameter == "bfloat16" ? "set bf16.enabled"
                                                         : "switch fp16 and bf16 off";
    problems.error("data_types.param_dtype", parameter + " contradicts the precision in force, " + model +
                                                 ". To have it, " + remedy + ", or leave this key out.");
  }
  return precision;
}

}  // namespace capstan
