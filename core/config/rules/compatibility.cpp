#include "core/config/rules/compatibility.hpp"

#include "core/schema/value.hpp"

namespace capstan {
namespace {

using Is = Condition::Is;

constexpr const char* kStage = "zero_optimization.stage";
constexpr Condition kBelowStage3{kStage, Is::kBelow, 3};
constexpr const char* kNeedsStage3 = "needs stage 3, and the stage is {}.";

constexpr Incompatible kTable[] = {
    {{"bf16.enabled"}, {"fp16.enabled"}, "fp16 and bf16 cannot both be enabled. Switch one of them off."},
    {{"amp.enabled"}, {"fp16.enabled"}, "amp and fp16 cannot both be enabled. Switch one of them off."},
    {{"amp.enabled"}, {"bf16.enabled"}, "amp and bf16 cannot both be enabled. Switch one of them off."},
    {{"amp.enabled"},
     {kStage, Is::kAbove, 0},
     "amp does not go with zero_optimization.stage {}. Use fp16 instead, or stage 0."},
    {{"amp.enabled"},
     {"torch_autocast.enabled"},
     "amp and torch_autocast cannot both be enabled: amp is autocast already. Switch one of them off."},
    {{"bf16.bf16_master_weights_and_grads"},
     {"fp16.fp16_master_weights_and_grads"},
     "does not go with fp16.fp16_master_weights_and_grads. Keep one of them."},
    {{"bf16.bf16_optimizer_states"},
     {"bf16.bf16_master_weights_and_grads", Is::kFalse},
     "needs bf16.bf16_master_weights_and_grads."},
    {{"torch_autocast.enabled"},
     {"zero_optimization.zero_quantized_weights"},
     "does not go with zero_optimization.zero_quantized_weights. Switch one of them off."},
    {{"sparse_gradients"}, {kStage, Is::kAbove, 0}, "needs ZeRO stage 0, and the stage is {}."},
    {{"gradient_allreduce_op", Is::kEqual, 0, "sum"},
     {kStage, Is::kEqual, 3},
     "\"sum\" does not go with zero_optimization.stage 3. Use \"mean\"."},
    {{"gradient_allreduce_op", Is::kEqual, 0, "sum"},
     {"zero_optimization.zenflow", Is::kGiven},
     "\"sum\" does not go with zero_optimization.zenflow. Use \"mean\"."},
    {{"gradient_allreduce_op", Is::kEqual, 0, "sum"},
     {"compile.deepcompile"},
     "\"sum\" does not go with compile.deepcompile. Use \"mean\"."},
    {{"zero_optimization.pipeline_loading_checkpoint"}, kBelowStage3, kNeedsStage3},
    {{"zero_optimization.zero_quantized_weights"}, kBelowStage3, kNeedsStage3},
    {{"zero_optimization.zero_quantized_nontrainable_weights"}, kBelowStage3, kNeedsStage3},
    {{"zero_optimization.zero_quantized_gradients"}, kBelowStage3, kNeedsStage3},
    {{"zero_optimization.zero_quantized_gradients"},
     {"zero_optimization.reduce_scatter", Is::kFalse},
     "needs zero_optimization.reduce_scatter."},
    {{"zero_optimization.offload_optimizer.ratio", Is::kBelow, 1},
     kBelowStage3,
     "below 1 needs stage 3, and the stage is {}."},
    {{"zero_optimization.offload_optimizer.super_offload"}, kBelowStage3, kNeedsStage3},
    {{"pipeline.stages", Is::kAbove, 1},
     {kStage, Is::kAbove, 1},
     "pipeline parallelism goes with ZeRO stages 0 and 1, and the stage is {}."},
    {{"managed_gradient_accumulation", Is::kFalse},
     {"pipeline.stages", Is::kAbove, 1},
     "false does not go with pipeline parallelism."},
    {{"managed_gradient_accumulation", Is::kFalse},
     {"compile.deepcompile"},
     "false does not go with compile.deepcompile."},
    {{"managed_gradient_accumulation", Is::kFalse}, {"amp.enabled"}, "false does not go with amp."},
};

std::string with_value(std::string text, const Json* value) {
  if (const auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, value ? shown(*value) : "absent");
  return text;
}

}  // namespace

bool Condition::holds(const Effective& values) const {
  const Json* value = values.find(key);
  if (!value || value->is_null()) return false;
  switch (is) {
    case Is::kTrue:
      return value->is_bool() && value->as_bool();
    case Is::kFalse:
      return value->is_bool() && !value->as_bool();
    case Is::kEqual:
      return *text != '\0' ? *value == Json(text) : *value == Json(number);
    case Is::kAbove:
      return value->is_number() && value->as_number() > number;
    case Is::kBelow:
      return value->is_number() && value->as_number() < number;
    case Is::kGiven:
      break;
  }
  return true;
}

std::string Condition::sentence() const {
  const std::string name = "`" + std::string(key) + "`";
  switch (is) {
    case Is::kTrue:
      return name;
    case Is::kFalse:
      return name + " false";
    case Is::kEqual:
      return name + " " + (*text != '\0' ? "`\"" + std::string(text) + "\"`" : shown(Json(number)));
    case Is::kAbove:
      return name + " above " + shown(Json(number));
    case Is::kBelow:
      return name + " below " + shown(Json(number));
    case Is::kGiven:
      break;
  }
  return name + " given";
}

std::span<const Incompatible> compatibility_table() { return kTable; }

void check_compatibility(const Effective& values, Problems& problems) {
  for (const Incompatible& row : kTable) {
    if (row.setting.holds(values) && row.with.holds(values))
      problems.error(row.setting.key, with_value(row.message, values.find(row.with.key)));
  }
}

}  // namespace capstan
