#include "core/elastic/save_progress.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kVariable = "CAPSTAN_INTERRUPT_SAVE_SECONDS";
constexpr std::chrono::minutes kTime{30};
constexpr std::int64_t kUnit = 64 << 10;

}  // namespace

std::optional<std::chrono::milliseconds> seconds_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0 && seconds < 1e6)) {
    throw RuntimeFault(std::string(variable) + " is '" + text + "'; a number of seconds above 0 is needed.");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::chrono::milliseconds time_to_write() { return seconds_in(kVariable).value_or(kTime); }

std::int64_t written_by(pid_t process) {
  std::ifstream counts("/proc/" + std::to_string(process) + "/io");
  std::string name;
  for (std::int64_t count = 0; counts >> name >> count;) {
    if (name == "wchar:") return count / kUnit;
  }
  return 0;
}

SaveProgress::SaveProgress() : written_(written_by(::getpid())) {}

bool SaveProgress::got_on() {
  const std::int64_t now = written_by(::getpid());
  return now != std::exchange(written_, now);
}

}  // namespace capstan
