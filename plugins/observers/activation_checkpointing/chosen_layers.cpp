#include "chosen_layers.hpp"

#include <algorithm>
#include <regex>
#include <utility>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::activation_checkpointing {
namespace {

constexpr std::size_t kListed = 6;

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  return text + (names.size() > kListed ? ", ... '" + names.back() + "'" : "");
}

}  // namespace

bool ChosenLayers::fits(const std::string& name, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return std::regex_search(name, std::regex(pattern));
         });
}

ChosenLayers::ChosenLayers(std::vector<std::string> names, const std::vector<std::string>& patterns, std::int64_t every)
    : patterns_(patterns), places_(names.size()) {
  for (const std::string& pattern : patterns) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return fits(name, {pattern}); }))
      continue;
    throw sdk::ConfigMistake("capstan.recompute.layers",
                             "'" + pattern + "' fits no layer of the model, which has " + listed(names) + ".");
  }
  std::int64_t in_region = 0;  // layers of the region that is open
  for (std::size_t i = 0; i < names.size(); ++i) {
    Place& place = places_[i];
    place.chosen = fits(names[i], patterns);
    if (!place.chosen) {
      in_region = 0;
      continue;
    }
    ++count_;
    place.joins = in_region > 0;
    if (place.joins) places_[i - 1].stays_open = true;
    regions_ += place.joins ? 0 : 1;
    in_region = (in_region + 1) % every;
  }
}

ChosenLayers::Place ChosenLayers::place(std::uint32_t index, std::string_view name) const {
  if (index < places_.size()) return places_[index];
  return {fits(std::string(name), patterns_), false, false};
}

}  // namespace capstan::activation_checkpointing
