#include "core/compression/unmatched_groups.hpp"

#include <utility>

namespace capstan {
std::string acts_on_nothing(const std::string& key) {
  return std::string(kConfigMistakeMark) + key + ": acts on no trained module of this model";
}

UnmatchedGroups unmatched_groups(const Compressions& compressions, const Config& config) {
  UnmatchedGroups found;
  for (std::string& warning : compressions.warnings()) {
    if (!has_config_mistake(warning)) {
      found.warnings.push_back(std::move(warning));
    } else if (config.run.on_mismatch == "continue") {
      found.warnings.push_back(config_mistakes_of(warning) +
                               ": the run trains without it (capstan.run.on_mismatch is \"continue\").");
    } else {
      found.mistakes.add(config_mistakes_of(warning) +
                         ", so the run would train without it. Correct the modules of its groups ('capstan model "
                         "show' prints the paths), switch it off, or set capstan.run.on_mismatch to \"continue\".");
    }
  }
  return found;
}

}  // namespace capstan
