#include <cmath>
#include <string>
#include <string_view>

#include "core/config/rules/rules.hpp"
#include "core/schema/regular_expression.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

/// Expressions from patterns in which * stands for any characters, the rest being an expression already.
std::vector<std::string> expressions(const Json& patterns, const std::string& where, Problems& problems) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const Json& pattern = patterns.as_array()[i];
    if (!pattern.is_string()) continue;  // reported already
    std::string text;
    for (const char character : pattern.as_string())
      text += character == '*' ? std::string(".*") : std::string(1, character);
    const std::string fault = expression_fault(text);
    if (!fault.empty()) problems.error(element_path(where, i), fault);
    out.push_back(std::move(text));
  }
  return out;
}

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

/// A fixed scale leaves the keys of the dynamic one idle.
void read_fp16_scale(const Effective& values, PrecisionConfig& precision) {
  precision.scales_loss = true;
  precision.loss_scale = values.number("fp16.loss_scale");
  if (precision.loss_scale != 0) return;
  precision.initial_scale_power = static_cast<int>(values.integer("fp16.initial_scale_power", 16));
  precision.loss_scale_window = values.integer("fp16.loss_scale_window", 1000);
  precision.hysteresis = static_cast<int>(std::min<std::int64_t>(values.integer("fp16.hysteresis", 2), 1'000'000'000));
  precision.consecutive_hysteresis = values.flag("fp16.consecutive_hysteresis");
  precision.min_loss_scale = values.number("fp16.min_loss_scale", 1);
}

/// The loss scaler of amp and of an fp16 autocast: that of torch's GradScaler and apex, which tolerate no overflow.
void scale_as_amp(PrecisionConfig& precision, const char* section) {
  precision.scales_loss = true;
  precision.scaled_by = section;
  precision.loss_scale = 0;
  precision.initial_scale_power = 16;
  precision.loss_scale_window = 2000;
  precision.hysteresis = 1;
  precision.consecutive_hysteresis = false;
  precision.min_loss_scale = 1;
  precision.max_loss_scale = std::exp2(24);
}

/// The canonical type that an argument of amp names; "" for none, null or false. What is no type is an error.
std::string amp_dtype(const Effective& values, const char* key, Problems& problems) {
  const Json* value = values.find(key);
  if (!value || value->is_null() || (value->is_bool() && !value->as_bool())) return "";
  const std::string dtype = value->is_string() ? canonical_dtype(value->as_string()) : "";
  if (dtype == "float32" || dtype == "float16" || dtype == "bfloat16") return dtype;
  problems.error(key, "must be a type, \"float32\", \"float16\" or \"bfloat16\", or null, got " + shown(*value) + ".");
  return "";
}

/// A row of the levels of apex, of which single arguments may replace entries.
struct AmpLevel {
  const char *name, *cast_model_type;
  bool patch, keep_batchnorm_fp32, master_weights, dynamic;
};

constexpr AmpLevel kAmpLevels[] = {{"O0", "", false, false, true, false},
                                   {"O1", "", true, false, true, true},
                                   {"O2", "float16", false, true, true, true},
                                   {"O3", "float16", false, false, false, false}};

void read_amp_scale(const Effective& values, bool dynamic, PrecisionConfig& precision, Problems& problems) {
  constexpr const char *kScale = "amp.loss_scale", *kFloor = "amp.min_loss_scale", *kCeiling = "amp.max_loss_scale";
  double fixed = 1;
  if (const Json* scale = values.find(kScale); scale && !scale->is_null()) {
    dynamic = scale->is_string();
    if (scale->is_string() ? scale->as_string() != "dynamic" : scale->as_number() <= 0) {
      problems.error(kScale, "must be \"dynamic\" or a number above 0, got " + shown(*scale) + ".");
      return;
    }
    if (!dynamic) fixed = scale->as_number();
  }
  const bool float16 = precision.compute == Precision::kFp16 || precision.autocast_dtype == "float16";
  if (!dynamic && fixed == 1 && !float16) return;
  scale_as_amp(precision, "amp");
  precision.loss_scale = dynamic ? 0 : fixed;
  if (!dynamic) return;
  precision.min_loss_scale = values.number(kFloor, precision.min_loss_scale);
  precision.max_loss_scale = values.number(kCeiling, precision.max_loss_scale);
  if (precision.min_loss_scale <= 0 || precision.min_loss_scale > precision.max_loss_scale) {
    problems.error(values.given(kFloor) ? kFloor : kCeiling,
                   "the loss scale must be able to move between amp.min_loss_scale, above 0, and amp.max_loss_scale.");
  }
}

/// Masters, and the optimizer's moments, in the compute type.
void read_low_precision(const Effective& values, PrecisionConfig& precision, Problems& problems) {
  constexpr const char *kBrain = "bf16.bf16_master_weights_and_grads", *kHalf = "fp16.fp16_master_weights_and_grads",
                       *kRandom = "capstan.precision.stochastic_rounding";
  if (precision.compute == Precision::kBf16) {
    precision.low_precision_masters = values.flag(kBrain);
    precision.low_precision_states = precision.low_precision_masters && values.flag("bf16.bf16_optimizer_states");
  } else if (precision.compute == Precision::kFp16) {
    precision.low_precision_masters = values.flag(kHalf);
  }
  precision.stochastic_rounding = values.flag(kRandom);
  if (!precision.stochastic_rounding || precision.low_precision_masters) return;
  problems.error(kRandom, std::string("rounds masters of 16 bits, and this run keeps masters in fp32. Set ") + kBrain +
                              " beside bf16.enabled, or " + kHalf + " beside fp16.enabled, or leave this key out.");
}

void resolve_amp(const Effective& values, PrecisionConfig& precision, Problems& problems) {
  if (!values.flag("amp.enabled")) return;
  const std::string name = values.text("amp.opt_level");
  for (const AmpLevel& level : kAmpLevels) {
    if (name != level.name) continue;
    const bool typed = values.given("amp.cast_model_type");
    const std::string type =
        typed ? amp_dtype(values, "amp.cast_model_type", problems) : std::string(level.cast_model_type);
    precision.compute = type == "float16" ? Precision::kFp16 : type == "bfloat16" ? Precision::kBf16 : Precision::kFp32;
    const auto flag = [&](const char* key, bool otherwise) { return values.given(key) ? values.flag(key) : otherwise; };
    // Operators that autocast leaves alone would meet two 16-bit types in a model of bfloat16.
    const char* const autocast = precision.compute == Precision::kBf16 ? "bfloat16" : "float16";
    if (flag("amp.patch_torch_functions", level.patch)) precision.autocast_dtype = autocast;
    precision.keep_batchnorm_fp32 = flag("amp.keep_batchnorm_fp32", level.keep_batchnorm_fp32);
    precision.fp32_masters = flag("amp.master_weights", level.master_weights);
    precision.output_dtype = amp_dtype(values, "amp.cast_model_outputs", problems);
    read_amp_scale(values, level.dynamic, precision, problems);
  }
}

void resolve_autocast(const Effective& values, PrecisionConfig& precision, Problems& problems) {
  if (!values.flag("torch_autocast.enabled")) return;
  const std::string dtype = canonical_dtype(values.text("torch_autocast.dtype"));
  if (dtype == "int8") {
    problems.error("torch_autocast.dtype", "autocast computes in no integers. Use bfloat16 or float16.");
    return;
  }
  if (dtype == "float32") return;
  precision.autocast_dtype = dtype.empty() ? "bfloat16" : dtype;
  // fp16 has a scaler of its own.
  if (dtype == "float16" && !precision.scales_loss) scale_as_amp(precision, "torch_autocast");
}

}  // namespace

PrecisionConfig resolve_precision(const Effective& values, Problems& problems) {
  PrecisionConfig precision;
  precision.compute = values.flag("fp16.enabled")   ? Precision::kFp16
                      : values.flag("bf16.enabled") ? Precision::kBf16
                                                    : Precision::kFp32;
  if (precision.compute == Precision::kBf16) precision.check_grad_overflow = values.flag("bf16.check_grad_overflow");
  if (precision.compute == Precision::kFp16) read_fp16_scale(values, precision);
  check_loss_scale(values.unconsumed(), problems);
  read_low_precision(values, precision, problems);
  resolve_amp(values, precision, problems);
  resolve_autocast(values, precision, problems);

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
  const std::string in_fp32 = "data_types.keep_in_fp32_modules";
  if (const Json* patterns = values.find(in_fp32); patterns && patterns->is_array()) {
    precision.fp32_buffers = expressions(*patterns, in_fp32, problems);
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
