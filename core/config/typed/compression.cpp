#include "core/config/typed/compression.hpp"

namespace capstan {
namespace {

std::vector<std::string> strings(const Json& value) {
  if (value.is_string()) return {value.as_string()};
  std::vector<std::string> out;
  if (!value.is_array()) return out;
  for (const Json& item : value.as_array()) {
    if (item.is_string()) out.push_back(item.as_string());
  }
  return out;
}

void read_scope(const SectionValues& group, CompressionScope& to) {
  Json related;
  group.read({{"modules", &to.modules}, {"related_modules", &related}});
  if (!related.is_array()) return;
  for (const Json& item : related.as_array()) to.related_modules.push_back(strings(item));
}

LayerReductionConfig read_layer_reduction(const SectionValues& section) {
  LayerReductionConfig to;
  section.read({{"enabled", &to.enabled},
                {"keep_number_layer", &to.keep_number_layer},
                {"module_name_prefix", &to.module_name_prefix},
                {"teacher_layer", &to.teacher_layer},
                {"other_module_name", &to.other_module_name}});
  return to;
}

WeightQuantizationConfig read_quantized_weights(const SectionValues& section) {
  WeightQuantizationConfig to;
  const SectionValues shared = section.section("shared_parameters");
  shared.read({{"enabled", &to.enabled},
               {"schedule_offset", &to.schedule_offset},
               {"quantizer_kernel", &to.quantizer_kernel},
               {"quantize_groups", &to.quantize_groups},
               {"quantize_verbose", &to.quantize_verbose},
               {"quantization_type", &to.quantization_type},
               {"rounding", &to.rounding},
               {"quantize_weight_in_forward", &to.quantize_weight_in_forward}});
  shared.section("fp16_mixed_quantize")
      .read({{"enabled", &to.fp16_mixed_quantize}, {"quantize_change_ratio", &to.quantize_change_ratio}});
  for (const auto& [name, group] : section.section("different_groups").named("<group>")) {
    WeightQuantizationGroup& made = to.groups[name];
    read_scope(group, made);
    group.section("params").read({{"start_bits", &made.start_bits},
                                  {"target_bits", &made.target_bits},
                                  {"quantization_period", &made.quantization_period}});
  }
  return to;
}

ActivationQuantizationConfig read_quantized_activations(const SectionValues& section) {
  ActivationQuantizationConfig to;
  section.section("shared_parameters")
      .read({{"enabled", &to.enabled},
             {"schedule_offset", &to.schedule_offset},
             {"quantization_type", &to.quantization_type},
             {"range_calibration", &to.range_calibration}});
  for (const auto& [name, group] : section.section("different_groups").named("<group>")) {
    ActivationQuantizationGroup& made = to.groups[name];
    read_scope(group, made);
    group.section("params").read({{"bits", &made.bits}});
  }
  return to;
}

void read_pruning(const SectionValues& section, PruningConfig& to) {
  section.section("shared_parameters")
      .read({{"enabled", &to.enabled}, {"schedule_offset", &to.schedule_offset}, {"method", &to.method}});
  for (const auto& [name, group] : section.section("different_groups").named("<group>")) {
    PruningGroup& made = to.groups[name];
    read_scope(group, made);
    group.section("params").read({{"dense_ratio", &made.dense_ratio}});
  }
}

}  // namespace

CompressionConfig read_compression(const SectionValues& section) {
  CompressionConfig to;
  to.layer_reduction = read_layer_reduction(section.section("layer_reduction"));
  to.weight_quantization = read_quantized_weights(section.section("weight_quantization"));
  to.activation_quantization = read_quantized_activations(section.section("activation_quantization"));
  read_pruning(section.section("sparse_pruning"), to.sparse_pruning);
  section.section("sparse_pruning")
      .section("shared_parameters")
      .read({{"schedule_offset_end", &to.sparse_pruning.schedule_offset_end},
             {"schedule_offset_stride", &to.sparse_pruning.schedule_offset_stride},
             {"block_pattern", &to.sparse_pruning.block_pattern},
             {"dense_ratio", &to.sparse_pruning.dense_ratio},
             {"excluded_modules", &to.sparse_pruning.excluded_modules}});
  read_pruning(section.section("row_pruning"), to.row_pruning);
  to.head_pruning.method = "topk";
  read_pruning(section.section("head_pruning"), to.head_pruning);
  section.section("head_pruning").section("shared_parameters").read({{"num_heads", &to.head_pruning.num_heads}});
  read_pruning(section.section("channel_pruning"), to.channel_pruning);
  return to;
}

EigenvalueConfig read_eigenvalue(const SectionValues& section) {
  EigenvalueConfig to;
  section.read({{"enabled", &to.enabled},
                {"verbose", &to.verbose},
                {"max_iter", &to.max_iter},
                {"tol", &to.tol},
                {"stability", &to.stability},
                {"gas_boundary_resolution", &to.gas_boundary_resolution},
                {"layer_name", &to.layer_name},
                {"layer_num", &to.layer_num}});
  return to;
}

ProgressiveLayerDropConfig read_progressive_layer_drop(const SectionValues& section) {
  ProgressiveLayerDropConfig to;
  section.read({{"enabled", &to.enabled}, {"theta", &to.theta}, {"gamma", &to.gamma}});
  return to;
}

std::optional<StoredWeightQuantizationConfig> read_weight_quantization(const SectionValues& section) {
  StoredWeightQuantizationConfig to;
  section.read({{"enabled", &to.enabled},
                {"num_bits", &to.num_bits},
                {"q_type", &to.q_type},
                {"q_groups", &to.q_groups},
                {"quantized_initialization", &to.quantized_initialization},
                {"post_init_quant", &to.post_init_quant}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace capstan
