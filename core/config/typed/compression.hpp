#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct LayerReductionConfig {
  bool enabled = false;
  std::string module_name_prefix;
  std::vector<std::int64_t> teacher_layer;
  std::vector<std::string> other_module_name;
  bool operator==(const LayerReductionConfig&) const = default;
};

/// compression_training; its methods are plugins, which read their own sections.
struct CompressionConfig {
  LayerReductionConfig layer_reduction;
  bool operator==(const CompressionConfig&) const = default;
};

CompressionConfig read_compression(const SectionValues& section);

}  // namespace capstan
