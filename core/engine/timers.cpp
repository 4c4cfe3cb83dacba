#include "core/engine/timers.hpp"

#include <algorithm>
#include <cstdio>

namespace capstan {

void Timers::add(const std::string& name, double milliseconds) {
  const auto found =
      std::find_if(totals_.begin(), totals_.end(), [&](const auto& total) { return total.first == name; });
  if (found == totals_.end()) {
    totals_.emplace_back(name, milliseconds);
  } else {
    found->second += milliseconds;
  }
}

Spans Timers::take() { return std::exchange(totals_, {}); }

std::string timers_line(int rank, const Spans& timers, const std::string& suffix) {
  std::string line = "[Rank " + std::to_string(rank) + "] time (ms)";
  for (const auto& [name, milliseconds] : timers) {
    char value[32];
    std::snprintf(value, sizeof value, "%.2f", milliseconds);
    line += " | " + name + suffix + ": " + value;
  }
  return line;
}

}  // namespace capstan
