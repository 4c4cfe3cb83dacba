#pragma once

#include <cstddef>

/// Bounds of a rendering: a template is a program of somebody else.
namespace capstan::text_template {

inline constexpr std::size_t kMostSteps = 2'000'000;   // expressions and statements
inline constexpr std::size_t kLongestText = 16 << 20;  // bytes of a string, and of the result
inline constexpr std::size_t kMostItems = 100'000;     // of a list in all, as range() of Jinja's sandbox
inline constexpr std::size_t kMostWords = 20'000;      // of one tag: chains of operators make deep trees
inline constexpr int kDeepestValues = 2'000;           // expressions that wait for each other's values
inline constexpr int kDeepestCalls = 100;              // macros that call each other
inline constexpr int kDeepestSource = 100;             // brackets and blocks within each other

}  // namespace capstan::text_template
