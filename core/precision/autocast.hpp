#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace capstan {

/// While it lives, operators that this thread runs on `device` compute in `dtype` where LibTorch's autocast holds that
/// to be safe; nothing is changed without a dtype, or where the caller's own autocast is on and none is asked for. At
/// its end the low-precision copies of weights that autocast keeps are dropped.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool on_;
  bool was_enabled_ = false, was_caching_ = false;
  c10::ScalarType previous_dtype_ = c10::ScalarType::Float;
};

/// What operators on `device` compute in where autocast is on; none: autocast is off.
std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device);

}  // namespace capstan
