#include "core/registry/component_states.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace capstan {
namespace {

/// The position and the type of "<position> <type>".
std::optional<std::pair<std::int64_t, std::string>> split_position(const std::string& key) {
  const std::size_t space = key.find(' ');
  std::int64_t position = 0;
  if (space == std::string::npos || space + 1 == key.size()) return std::nullopt;
  const auto [end, error] = std::from_chars(key.data(), key.data() + space, position);
  if (error != std::errc() || end != key.data() + space || position < 0) return std::nullopt;
  return std::pair(position, key.substr(space + 1));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string state_key(const std::string& type, std::size_t earlier) {
  return earlier == 0 ? type : type + " " + std::to_string(earlier + 1);
}

Json states_by_type(const Json& states) {
  std::map<std::pair<std::int64_t, std::string>, Json> by_position;
  for (const auto& [key, state] : states.as_object()) {
    const auto split = split_position(key);
    // A type may be a number: "8 2" is the second component of type "8" where "8" is there too.
    if (!split) return states;
    by_position[*split] = state;
  }
  Json by_type = Json::object();
  std::map<std::string, std::size_t> count;
  for (const auto& [place, state] : by_position) by_type[state_key(place.second, count[place.second]++)] = state;
  return by_type;
}

std::vector<std::string> unmatched_states(const std::string& kind, const std::vector<std::string>& saved,
                                          const std::vector<std::string>& kept) {
  std::vector<std::string> sentences;
  for (const std::string& name : kept) {
    if (contains(saved, name)) continue;
    sentences.push_back("holds no state of " + kind + " '" + name + "', which begins anew.");
  }
  for (const std::string& name : saved) {
    if (contains(kept, name)) continue;
    sentences.push_back("holds a state of " + kind + " '" + name +
                        "', which this run does not have. The state is not used.");
  }
  return sentences;
}

}  // namespace capstan
