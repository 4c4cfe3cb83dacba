#pragma once

#include <cstdlib>
#include <cstring>

/// Which rule a plugin of this folder breaks: the value of CAPSTAN_BAD. Without it they keep to all of them.
inline bool breaks(const char* rule) {
  const char* chosen = std::getenv("CAPSTAN_BAD");
  return chosen && std::strcmp(chosen, rule) == 0;
}
