#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// A spelling of an earlier release that was replaced by today's.
struct Replacement {
  std::string old_path;
  std::string new_path;       // empty: the key is dropped
  std::optional<Json> value;  // what stands at new_path now; none: the old value, moved
};

/// Replaces old and alternative spellings in a document by today's, in place. Warns of old ones, once each; old and new
/// together are errors. Returns what was replaced, for `capstan upgrade`; spellings that are merely alternatives are
/// not among it.
std::vector<Replacement> replace_old_names(Json& document, Problems& problems);

/// A name that a section also takes, and today's path for it.
struct OldSpelling {
  std::string name, new_path;
  bool same_value;  // the value stays as it is
};
std::vector<OldSpelling> old_spellings_in(const std::string& section);

/// "Did you mean 'x'?" or "Write ..": what a path among those spellings is today, with a value that was given for it.
std::string todays_spelling(const std::string& old_path, const Json& value);

}  // namespace capstan
