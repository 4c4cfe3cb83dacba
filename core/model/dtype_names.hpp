#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "core/config/config.hpp"

namespace capstan {

/// The type that a model computes in.
at::ScalarType compute_dtype(const PrecisionConfig& precision);

/// "float32", "bfloat16", "float16", "int64", "uint8", "int8". Throws PluginError for others.
at::ScalarType dtype_named(const std::string& name);

}  // namespace capstan
