#pragma once

#include <cstdint>

/// Whether queries of block `row` attend to keys of block `column`: those of a window that ends with their own, and of
/// what is before it every `stride`-th (dilated attention).
inline bool template_plugin_attends(std::uint32_t row, std::uint32_t column, std::uint32_t window,
                                    std::uint32_t stride) {
  if (column > row) return false;
  const std::uint32_t back = row - column;
  return back < window || back % stride == 0;
}
