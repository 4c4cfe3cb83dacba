#include "core/text/problem.hpp"

#include <algorithm>
#include <utility>

namespace capstan {

std::string Problem::text(const std::string& file) const {
  std::string out = file;
  if (line > 0) out += (out.empty() ? "" : ":") + std::to_string(line) + ":" + std::to_string(column);
  if (!out.empty()) out += ": ";
  if (!path.empty()) out += path + ": ";
  return out + message;
}

void Problems::error(std::string path, std::string message) {
  all_.push_back({Problem::Severity::kError, std::move(path), std::move(message)});
}

void Problems::warning(std::string path, std::string message) {
  all_.push_back({Problem::Severity::kWarning, std::move(path), std::move(message)});
}

void Problems::notice(std::string path, std::string message) {
  all_.push_back({Problem::Severity::kNotice, std::move(path), std::move(message)});
}

bool Problems::has_errors() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Problem& problem) { return problem.severity == Problem::Severity::kError; });
}

}  // namespace capstan
