#include "core/precision/autocast.hpp"

#include <c10/macros/Export.h>

// ATen/autocast_mode.h reads all of ATen, which takes longer than this whole library may.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(c10::DeviceType device_type);
TORCH_API void set_autocast_enabled(c10::DeviceType device_type, bool enabled);
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);
TORCH_API void set_autocast_dtype(c10::DeviceType device_type, c10::ScalarType dtype);
TORCH_API void clear_cache();
TORCH_API int increment_nesting();
TORCH_API int decrement_nesting();
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
}  // namespace at::autocast

namespace capstan {

namespace autocast = at::autocast;

AutocastScope::AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
    : device_(device), on_(dtype.has_value()) {
  if (!on_) return;
  was_enabled_ = autocast::is_autocast_enabled(device_);
  was_caching_ = autocast::is_autocast_cache_enabled();
  previous_dtype_ = autocast::get_autocast_dtype(device_);
  autocast::set_autocast_enabled(device_, true);
  autocast::set_autocast_dtype(device_, *dtype);
  autocast::set_autocast_cache_enabled(true);
  autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!on_) return;
  // Within a program's own scope the copies are that scope's to drop.
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  autocast::set_autocast_cache_enabled(was_caching_);
  autocast::set_autocast_dtype(device_, previous_dtype_);
  autocast::set_autocast_enabled(device_, was_enabled_);
}

std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device) {
  if (!autocast::is_autocast_enabled(device)) return std::nullopt;
  return autocast::get_autocast_dtype(device);
}

}  // namespace capstan
