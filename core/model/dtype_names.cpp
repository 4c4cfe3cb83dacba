#include "core/model/dtype_names.hpp"

#include <map>

#include "core/errors.hpp"

namespace capstan {

at::ScalarType compute_dtype(const PrecisionConfig& precision) {
  switch (precision.compute) {
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
    case Precision::kFp32:
      break;
  }
  return at::kFloat;
}

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType, std::less<>> kNames = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf},
      {"int64", at::kLong},    {"uint8", at::kByte},        {"int8", at::kChar}};
  const auto found = kNames.find(name);
  if (found == kNames.end())
    throw PluginError("state dtype '" + name + "': expected float32, bfloat16, float16, int64, uint8 or int8.");
  return found->second;
}

}  // namespace capstan
