#include "core/registry/manifest_reader.hpp"

#include <algorithm>
#include <cctype>

#include "core/text/nearest.hpp"

namespace capstan {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '+';
  });
}

bool is_version(std::string_view text) {
  return !text.empty() && text.front() != '.' && text.back() != '.' && text.find("..") == std::string_view::npos &&
         text.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// What stands behind '-' or '+': names with dots between them.
bool is_label(std::string_view text) {
  return !text.empty() && text.front() != '.' && text.back() != '.' && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '.'; });
}

bool is_semantic_version(std::string_view text) {
  const auto plus = text.find('+');
  if (plus != std::string_view::npos && !is_label(text.substr(plus + 1))) return false;
  text = text.substr(0, plus);
  const auto minus = text.find('-');
  if (minus != std::string_view::npos && !is_label(text.substr(minus + 1))) return false;
  text = text.substr(0, minus);
  return is_version(text) && std::count(text.begin(), text.end(), '.') <= 2;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Stands for all tables of one sort: "components[].params.*" for "components[0].params.lr".
std::string sort_of(std::string path) {
  for (auto open = path.find('['); open != std::string::npos; open = path.find('[', open + 1)) {
    path.erase(open + 1, path.find(']', open) - open - 1);
  }
  constexpr std::string_view kParams = "[].params.";
  const auto params = path.find(kParams);
  return params == std::string::npos ? path : path.substr(0, params + kParams.size()) + "*";
}

/// Stands for a table that is missing.
const Json kNothing;

}  // namespace

ManifestTable::ManifestTable(const Json& table, ManifestProblems& problems, std::string path)
    : json_(table.is_object() ? &table : nullptr), problems_(&problems), path_(std::move(path)) {
  if (!json_ && &table != &kNothing) {
    problems_->error(table.offset(), path_ + ": must be a table, got " + table.dump() + ".");
  }
}

const Json* ManifestTable::find_unread(const std::string& key) const { return json_ ? json_->find(key) : nullptr; }

const Json* ManifestTable::find(const std::string& key) const {
  asked_->keys.insert(key);
  problems_->asked(sort_of(path_), key);
  return json_ ? json_->find(key) : nullptr;
}

std::string ManifestTable::text(const std::string& key) const {
  const Json* value = find(key);
  if (!value) {
    miss(key);
    return "";
  }
  if (!value->is_string()) {
    fail_type(key, "a string", *value);
    return "";
  }
  if (value->as_string().empty()) fail(key, "must not be empty.");
  return value->as_string();
}

std::string ManifestTable::text(const std::string& key, const std::string& otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) {
    fail_type(key, "a string", *value);
    return otherwise;
  }
  return value->as_string();
}

bool ManifestTable::boolean(const std::string& key, bool otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_bool()) {
    fail_type(key, "true or false", *value);
    return otherwise;
  }
  return value->as_bool();
}

double ManifestTable::number(const std::string& key, double otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) {
    fail_type(key, "a number", *value);
    return otherwise;
  }
  return value->as_number();
}

std::int64_t ManifestTable::integer(const std::string& key, std::int64_t otherwise, std::int64_t min,
                                    std::int64_t max) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_integer()) {
    fail_type(key, "an integer", *value);
    return otherwise;
  }
  if (value->as_integer() < min || value->as_integer() > max) {
    fail(key, "must be from " + std::to_string(min) + " to " + std::to_string(max) + ", got " + value->dump() + ".");
    return otherwise;
  }
  return value->as_integer();
}

std::string ManifestTable::name(const std::string& key) const {
  const std::string value = text(key);
  if (!value.empty() && !is_name(value))
    fail(key, "must be made of letters, digits, '_', '-', '.' and '+', got '" + value + "'.");
  return value;
}

std::vector<std::string> ManifestTable::names(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return {};
  std::vector<std::string> names;
  bool right = value->is_array();
  for (std::size_t i = 0; right && i < value->size(); ++i) {
    const Json& item = value->as_array()[i];
    right = item.is_string() && is_name(item.as_string());
    if (right) names.push_back(item.as_string());
  }
  if (!right) fail_type(key, "a list of names", *value);
  return names;
}

std::string ManifestTable::version(const std::string& key) const {
  const std::string value = text(key);
  if (!value.empty() && !is_version(value)) {
    fail(key, "must be a version such as \"2.11\", got '" + value + "'.");
  }
  return value;
}

std::string ManifestTable::semantic_version(const std::string& key) const {
  const std::string value = text(key);
  if (!value.empty() && !is_semantic_version(value)) {
    fail(key, "must be a semantic version such as \"1.2.0\" or \"1.2.0-rc.1\", got '" + value + "'.");
  }
  return value;
}

std::string ManifestTable::choice(const std::string& key, const std::string& otherwise,
                                  const std::vector<std::string>& known) const {
  knows(key, known);
  const std::string value = otherwise.empty() ? text(key) : text(key, otherwise);
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    // An empty text was reported already, unless it was given in place of a default.
    if (value.empty() && otherwise.empty()) return "";
    fail(key, "must be one of " + joined(known) + ", got '" + value + "'." + suggestion(value, known));
    return otherwise;
  }
  return value;
}

std::vector<std::string> ManifestTable::choices(const std::string& key, const std::vector<std::string>& known) const {
  knows(key, known);
  std::vector<std::string> values;
  for (const std::string& value : names(key)) {
    if (std::find(known.begin(), known.end(), value) == known.end()) {
      fail(key, "'" + value + "' is not one of " + joined(known) + "." + suggestion(value, known));
    } else {
      values.push_back(value);
    }
  }
  return values;
}

ManifestTable ManifestTable::table(const std::string& key) const {
  const Json* value = find(key);
  // What a missing table holds is not reported as missing too.
  if (!value) miss(key);
  return ManifestTable(value ? *value : kNothing, *problems_, full(key));
}

std::vector<ManifestTable> ManifestTable::list(const std::string& key) const {
  std::vector<ManifestTable> made;
  const Json* value = find(key);
  if (!value) return made;
  if (!value->is_array()) {
    fail_type(key, "a list of tables", *value);
    return made;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    made.emplace_back(value->as_array()[i], *problems_, full(key) + "[" + std::to_string(i) + "]");
  }
  return made;
}

std::vector<std::pair<std::string, ManifestTable>> ManifestTable::tables(const std::string& key) const {
  std::vector<std::pair<std::string, ManifestTable>> made;
  const Json* value = find(key);
  if (!value) return made;
  if (!value->is_object()) {
    fail_type(key, "a table", *value);
    return made;
  }
  for (const auto& [name, table] : value->as_object()) {
    if (!is_name(name)) {
      fail(key, "'" + name + "' is not a name: letters, digits, '_', '-', '.' and '+' make one.");
    }
    made.emplace_back(name, ManifestTable(table, *problems_, full(key) + "." + name));
  }
  return made;
}

void ManifestTable::knows(const std::string& key, const std::vector<std::string>& words) const {
  problems_->asked(sort_of(path_), key, words);
}

void ManifestTable::reject_unread() const {
  if (!json_) return;
  std::vector<std::string> missing;
  for (const auto& [key, message] : asked_->missing) missing.push_back(key);
  const std::vector<std::string> known(asked_->keys.begin(), asked_->keys.end());
  std::set<std::string> meant;
  for (const auto& [key, value] : json_->as_object()) {
    if (asked_->keys.contains(key)) continue;
    auto near = nearest_name(key, missing);
    if (near) meant.insert(*near);
    if (!near) near = nearest_name(key, known);
    fail(key, "unknown key." + (near ? " Did you mean '" + *near + "'?" : ""));
  }
  for (const auto& [key, message] : asked_->missing) {
    if (!meant.contains(key)) fail(key, message);
  }
}

std::string ManifestTable::full(const std::string& key) const {
  return path_.empty() ? key : key.empty() ? path_ : path_ + "." + key;
}

std::optional<std::size_t> ManifestTable::offset(const std::string& key) const {
  const Json* member = json_->find(key);
  return member && member->offset() ? member->offset() : json_->offset();
}

void ManifestTable::fail(const std::string& key, const std::string& message) const {
  if (json_) problems_->error(offset(key), full(key) + ": " + message);
}

void ManifestTable::warn(const std::string& key, const std::string& message) const {
  if (json_) problems_->warning(offset(key), full(key) + ": " + message);
}

void ManifestTable::miss(const std::string& key, const std::string& message) const {
  asked_->missing.emplace_back(key, message);
}

void ManifestTable::fail_type(const std::string& key, const std::string& wanted, const Json& found) const {
  fail(key, "must be " + wanted + ", got " + found.dump() + ".");
}

}  // namespace capstan
