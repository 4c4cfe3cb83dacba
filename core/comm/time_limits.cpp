#include "core/comm/time_limits.hpp"

#include <cstdlib>

#include "core/errors.hpp"

namespace capstan {

Communicator::Options time_limits(const Environment& environment) {
  Communicator::Options options;
  const auto text = environment("CAPSTAN_COLLECTIVE_TIMEOUT");
  if (!text) return options;
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (end == text->c_str() || *end != '\0' || !(seconds > 0 && seconds < 1e6)) {
    throw RuntimeFault("CAPSTAN_COLLECTIVE_TIMEOUT is '" + *text + "'; a number of seconds above 0 is needed.");
  }
  options.timeout = options.arrival = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  return options;
}

}  // namespace capstan
