#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace capstan {

/// A configuration's text with today's spellings, and a line for each change.
struct Upgraded {
  std::string text;
  std::vector<std::string> changes;  // "zero_optimization.cpu_offload -> zero_optimization.offload_optimizer"
};

/// Replaces old spellings in the text itself, and what JSON spells otherwise, commas among it: comments, order and
/// layout stay. JSON only. Throws ConfigError when the
/// text cannot be read, or when old and new spellings contradict each other.
Upgraded upgrade_text(const ConfigText& text);

}  // namespace capstan
