#include "core/checkpoint/dtypes.hpp"

#include <utility>

namespace capstan {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kFloat, "F32"},
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kDouble, "F64"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
    {at::kUInt16, "U16"},
    {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kComplexFloat, "C64"},
};

}  // namespace

const char* safetensors_dtype(at::ScalarType type) {
  for (const auto& [scalar, name] : kDtypes) {
    if (scalar == type) return name;
  }
  return nullptr;
}

std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype) {
  for (const auto& [scalar, name] : kDtypes) {
    if (name == safetensors_dtype) return scalar;
  }
  return std::nullopt;
}

}  // namespace capstan
