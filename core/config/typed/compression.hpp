#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// Which modules a group of a compression method covers.
struct CompressionScope {
  std::optional<std::vector<std::string>> modules;        // regular expressions searched in module names; absent: all
  std::vector<std::vector<std::string>> related_modules;  // one list for each of `modules`
  bool operator==(const CompressionScope&) const = default;
};

struct LayerReductionConfig {
  bool enabled = false;
  std::optional<std::int64_t> keep_number_layer;
  std::string module_name_prefix;
  std::vector<std::int64_t> teacher_layer;
  std::vector<std::string> other_module_name;
  bool operator==(const LayerReductionConfig&) const = default;
};

struct WeightQuantizationGroup : CompressionScope {
  std::int64_t start_bits = 0, target_bits = 0, quantization_period = 1;
  bool operator==(const WeightQuantizationGroup&) const = default;
};

struct WeightQuantizationConfig {
  bool enabled = false;
  std::int64_t schedule_offset = 0;
  bool quantizer_kernel = false;
  std::int64_t quantize_groups = 1;
  bool quantize_verbose = false;
  std::string quantization_type = "symmetric";  // symmetric, asymmetric
  std::string rounding = "nearest";             // nearest, stochastic
  bool quantize_weight_in_forward = false;
  bool fp16_mixed_quantize = false;
  double quantize_change_ratio = 0.001;
  std::map<std::string, WeightQuantizationGroup> groups;
  bool operator==(const WeightQuantizationConfig&) const = default;
};

struct ActivationQuantizationGroup : CompressionScope {
  std::int64_t bits = 0;
  bool operator==(const ActivationQuantizationGroup&) const = default;
};

struct ActivationQuantizationConfig {
  bool enabled = false;
  std::int64_t schedule_offset = 0;
  std::string quantization_type = "symmetric";  // symmetric, asymmetric
  std::string range_calibration = "static";     // static, dynamic
  std::map<std::string, ActivationQuantizationGroup> groups;
  bool operator==(const ActivationQuantizationConfig&) const = default;
};

struct PruningGroup : CompressionScope {
  double dense_ratio = 1;
  bool operator==(const PruningGroup&) const = default;
};

/// row_pruning, head_pruning, channel_pruning, and what sparse_pruning shares with them.
struct PruningConfig {
  bool enabled = false;
  std::int64_t schedule_offset = 0;
  std::string method = "l1";              // l1, topk; sparse pruning also snip_momentum
  std::optional<std::int64_t> num_heads;  // head_pruning
  std::map<std::string, PruningGroup> groups;
  bool operator==(const PruningConfig&) const = default;
};

struct SparsePruningConfig : PruningConfig {
  std::optional<std::int64_t> schedule_offset_end;
  std::int64_t schedule_offset_stride = 1;
  std::string block_pattern = "4x1";
  double dense_ratio = 0.1;  // the share of weights that snip_momentum keeps
  std::vector<std::string> excluded_modules;
  bool operator==(const SparsePruningConfig&) const = default;
};

/// compression_training
struct CompressionConfig {
  LayerReductionConfig layer_reduction;
  WeightQuantizationConfig weight_quantization;
  ActivationQuantizationConfig activation_quantization;
  SparsePruningConfig sparse_pruning;
  PruningConfig row_pruning, head_pruning, channel_pruning;
  bool operator==(const CompressionConfig&) const = default;
};

/// quantize_training.eigenvalue
struct EigenvalueConfig {
  bool enabled = false;
  bool verbose = false;
  std::int64_t max_iter = 100;
  double tol = 0.01, stability = 1e-6;
  std::int64_t gas_boundary_resolution = 1;
  std::string layer_name = "bert.encoder.layer";
  std::int64_t layer_num = 0;
  bool operator==(const EigenvalueConfig&) const = default;
};

struct ProgressiveLayerDropConfig {
  bool enabled = false;
  double theta = 0.5, gamma = 0.001;
  bool operator==(const ProgressiveLayerDropConfig&) const = default;
};

/// weight_quantization at the top level: weights kept in few bits.
struct StoredWeightQuantizationConfig {
  bool enabled = true;
  std::int64_t num_bits = 8;
  std::string q_type = "symmetric";  // symmetric, asymmetric
  std::int64_t q_groups = 1;
  Json quantized_initialization = Json::object(), post_init_quant = Json::object();
  bool operator==(const StoredWeightQuantizationConfig&) const = default;
};

CompressionConfig read_compression(const SectionValues& section);
EigenvalueConfig read_eigenvalue(const SectionValues& section);
ProgressiveLayerDropConfig read_progressive_layer_drop(const SectionValues& section);
std::optional<StoredWeightQuantizationConfig> read_weight_quantization(const SectionValues& section);

}  // namespace capstan
