#include "core/config/resolve/command_line_problems.hpp"

#include <algorithm>

namespace capstan {

namespace {

/// True for the path itself, its members and elements.
bool is_within(const std::string& path, const std::string& within) {
  if (!path.starts_with(within)) return false;
  return path.size() == within.size() || path[within.size()] == '.' || path[within.size()] == '[';
}

}  // namespace

bool is_of_command_line(const Problem& problem, const ConfigContext& context) {
  if (problem.path.empty()) return false;
  return std::any_of(context.overrides.begin(), context.overrides.end(), [&](const auto& given) {
    // An object that the text lacks is there because of a member that was given.
    return is_within(problem.path, given.first) || (problem.line == 0 && is_within(given.first, problem.path));
  });
}

std::string shown(Problem problem, const ConfigText& text, const ConfigContext& context) {
  const bool typed = is_of_command_line(problem, context);
  if (typed || !text.has_places) problem.line = 0;
  return problem.text(typed ? "command line" : text.source);
}

}  // namespace capstan
