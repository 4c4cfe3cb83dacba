#pragma once

#include <cstdlib>
#include <cstring>

/// Which rule a plugin of this folder breaks: the value of CAPSTAN_BAD. Without it they keep to all of them.
inline bool breaks(const char* rule) {
  const char* chosen = std::getenv("CAPSTAN_BAD");
  return chosen && std::strcmp(chosen, rule) == 0;
}

/// What a call of any kind may lose.
inline void leak_in_call(const char* rule = "calls_leak") {
  [[maybe_unused]] static void* volatile lost;
  if (breaks(rule)) lost = std::malloc(std::size_t{1} << 20);
}
