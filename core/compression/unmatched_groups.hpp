#pragma once

#include <string>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/config/config.hpp"
#include "core/registry/config_mistakes.hpp"

namespace capstan {

/// Compressions that act on nothing are a mistake of the configuration: the run would train uncompressed. With
/// capstan.run.on_mismatch "continue" they are warnings.
struct UnmatchedGroups {
  std::vector<std::string> warnings;  // with those of the components
  ConfigMistakes mistakes;
};

UnmatchedGroups unmatched_groups(const Compressions& compressions, const Config& config);

/// The warning by which Compressions::plan() marks a component whose plan is empty. `key`: what chooses it.
std::string acts_on_nothing(const std::string& key);

}  // namespace capstan
