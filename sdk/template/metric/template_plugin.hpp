#pragma once

#include <cstdint>
#include <set>
#include <span>

/// How many tokens differ from all others before them, out of `scale`: 1 of 4 is scale / 4.
inline std::int64_t template_plugin_variety(std::span<const std::int64_t> tokens, std::int64_t scale) {
  if (tokens.empty()) return 0;
  const std::set<std::int64_t> different(tokens.begin(), tokens.end());
  return static_cast<std::int64_t>(different.size()) * scale / static_cast<std::int64_t>(tokens.size());
}
