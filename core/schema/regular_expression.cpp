#include "core/schema/regular_expression.hpp"

#include <regex>

#include "core/schema/value.hpp"
#include "core/text/json.hpp"

namespace capstan {
namespace {

// The library descends once a bracket: a longer expression could exhaust the stack.
constexpr std::size_t kLongest = 1000;

}  // namespace

std::string expression_fault(const std::string& pattern) {
  if (pattern.size() > kLongest) {
    return "a regular expression of " + std::to_string(pattern.size()) + " characters; at most 1000 are read.";
  }
  try {
    std::regex checked(pattern);
  } catch (const std::regex_error&) {
    return shown(Json(pattern)) + " is not a regular expression.";
  }
  return "";
}

}  // namespace capstan
