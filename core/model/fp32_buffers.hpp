#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/model/model.hpp"

namespace capstan {

/// The buffers of a model that are fp32 while it computes in 16 bits, as data_types.keep_in_fp32_modules says.
struct Fp32Buffers {
  std::set<std::string> names;
  std::vector<std::string> warnings;  // expressions of the configuration that fit no buffer
};

/// Finds the buffers by the expressions of the configuration, else by the facts of the model: {"fp32_buffers":
/// {"bfloat16": ["router.bias"], "float16": []}}, whole names for each type that the model may compute in. Throws
/// PluginError when the facts have another shape.
Fp32Buffers fp32_buffers(const PrecisionConfig& precision, const Model& model);

}  // namespace capstan
