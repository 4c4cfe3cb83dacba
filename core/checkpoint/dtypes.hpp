#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace capstan {

/// How safetensors calls an element type: "F32", "BF16", "I64", ... Null for one that the format lacks.
const char* safetensors_dtype(at::ScalarType type);

/// The element type of that name.
std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype);

}  // namespace capstan
