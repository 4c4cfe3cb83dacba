#pragma once

#include <string>

namespace capstan {

/// What is wrong with a regular expression (ECMAScript), as a sentence; empty when it is right.
std::string expression_fault(const std::string& pattern);

}  // namespace capstan
