#include "core/compression/unmatched_groups.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/text/json.hpp"

namespace capstan {
namespace {

constexpr std::string_view kOnMismatch = "capstan.run.on_mismatch";

/// What the configuration has in force; the typed Config has no field of it.
bool goes_on(const Config& config) {
  const Json* chosen = &config.effective;
  for (std::size_t begin = 0; chosen != nullptr && begin < kOnMismatch.size();) {
    const std::size_t end = std::min(kOnMismatch.find('.', begin), kOnMismatch.size());
    chosen = chosen->is_object() ? chosen->find(kOnMismatch.substr(begin, end - begin)) : nullptr;
    begin = end + 1;
  }
  return chosen != nullptr && *chosen == Json("continue");
}

}  // namespace

std::string acts_on_nothing(const std::string& key) {
  return std::string(kConfigMistakeMark) + key + ": acts on no trained module of this model";
}

UnmatchedGroups unmatched_groups(const Compressions& compressions, const Config& config) {
  UnmatchedGroups found;
  for (std::string& warning : compressions.warnings()) {
    if (!has_config_mistake(warning)) {
      found.warnings.push_back(std::move(warning));
    } else if (goes_on(config)) {
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
