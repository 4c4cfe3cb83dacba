#include "core/checkpoint/state_text.hpp"

#include <cmath>
#include <limits>

#include "core/checkpoint/nesting.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kKey = "$number";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The same value with every member and item replaced by what `change` makes of it.
template <class Change>
Json changed(const Json& value, Change change) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const auto& item : value.as_array()) out.push_back(change(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (const auto& [key, item] : value.as_object()) out.as_object().emplace_back(key, change(item));
  return out;
}

Json encoded(const Json& value) {
  if (!value.is_number() || std::isfinite(value.as_number())) return changed(value, encoded);
  Json out = Json::object();
  out[kKey] = std::isnan(value.as_number()) ? "nan" : value.as_number() > 0 ? "inf" : "-inf";
  return out;
}

Json decoded(const Json& value) {
  const Json* word = value.size() == 1 ? value.find(kKey) : nullptr;
  if (word && *word == Json("nan")) return std::numeric_limits<double>::quiet_NaN();
  if (word && *word == Json("inf")) return kInfinity;
  if (word && *word == Json("-inf")) return -kInfinity;
  return changed(value, decoded);
}

}  // namespace

std::string state_text(const Json& state) { return encoded(state).dump(1) + "\n"; }

Json parse_state(std::string_view text, const std::string& where) {
  if (nested_deeper_than(text, 1000)) throw RuntimeFault(where + ": it nests too deep.");
  try {
    return decoded(Json::parse(text));
  } catch (const ConfigError& error) {
    throw RuntimeFault(where + ": " + error.what());
  }
}

}  // namespace capstan
