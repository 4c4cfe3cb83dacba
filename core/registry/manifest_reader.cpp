#include "core/registry/manifest_reader.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '+';
  });
}

bool is_version(const std::string& text) {
  return !text.empty() && text.front() != '.' && text.back() != '.' && text.find("..") == std::string::npos &&
         text.find_first_not_of("0123456789.") == std::string::npos;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

ManifestTable::ManifestTable(const Json& table, std::string where, std::string path)
    : json_(&table), where_(std::move(where)), path_(std::move(path)) {
  if (!table.is_object()) fail("", "must be a table, got " + table.dump() + ".");
}

const Json* ManifestTable::find(const std::string& key) const {
  read_->insert(key);
  return json_->find(key);
}

std::string ManifestTable::text(const std::string& key) const {
  const Json* value = find(key);
  if (!value) fail(key, "is missing.");
  if (!value->is_string()) fail_type(key, "a string", *value);
  if (value->as_string().empty()) fail(key, "must not be empty.");
  return value->as_string();
}

std::string ManifestTable::text(const std::string& key, const std::string& otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) fail_type(key, "a string", *value);
  return value->as_string();
}

bool ManifestTable::boolean(const std::string& key, bool otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_bool()) fail_type(key, "true or false", *value);
  return value->as_bool();
}

double ManifestTable::number(const std::string& key, double otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) fail_type(key, "a number", *value);
  return value->as_number();
}

std::int64_t ManifestTable::integer(const std::string& key, std::int64_t otherwise, std::int64_t min,
                                    std::int64_t max) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_integer()) fail_type(key, "an integer", *value);
  if (value->as_integer() < min || value->as_integer() > max) {
    fail(key, "must be from " + std::to_string(min) + " to " + std::to_string(max) + ", got " + value->dump() + ".");
  }
  return value->as_integer();
}

std::string ManifestTable::name(const std::string& key) const {
  const std::string value = text(key);
  if (!is_name(value)) fail(key, "must be made of letters, digits, '_', '-', '.' and '+', got '" + value + "'.");
  return value;
}

std::vector<std::string> ManifestTable::names(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_array()) fail_type(key, "a list of names", *value);
  std::vector<std::string> names;
  for (const Json& item : value->as_array()) {
    if (!item.is_string() || !is_name(item.as_string())) fail_type(key, "a list of names", *value);
    names.push_back(item.as_string());
  }
  return names;
}

std::string ManifestTable::version(const std::string& key) const {
  const std::string value = text(key);
  if (!is_version(value)) fail(key, "must be a version such as \"2.11\", got '" + value + "'.");
  return value;
}

std::string ManifestTable::choice(const std::string& key, const std::string& otherwise,
                                  const std::vector<std::string>& known) const {
  const std::string value = otherwise.empty() ? text(key) : text(key, otherwise);
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    fail(key, "must be one of " + joined(known) + ", got '" + value + "'." + suggestion(value, known));
  }
  return value;
}

std::vector<std::string> ManifestTable::choices(const std::string& key, const std::vector<std::string>& known) const {
  const auto values = names(key);
  for (const auto& value : values) {
    if (std::find(known.begin(), known.end(), value) == known.end()) {
      fail(key, "'" + value + "' is not one of " + joined(known) + "." + suggestion(value, known));
    }
  }
  return values;
}

ManifestTable ManifestTable::table(const std::string& key) const {
  const Json* value = find(key);
  if (!value) fail(key, "is missing.");
  return ManifestTable(*value, where_, full(key));
}

std::vector<ManifestTable> ManifestTable::list(const std::string& key) const {
  std::vector<ManifestTable> made;
  const Json* value = find(key);
  if (!value) return made;
  if (!value->is_array()) fail_type(key, "a list of tables", *value);
  for (std::size_t i = 0; i < value->size(); ++i) {
    made.emplace_back(value->as_array()[i], where_, full(key) + "[" + std::to_string(i) + "]");
  }
  return made;
}

std::vector<std::pair<std::string, ManifestTable>> ManifestTable::tables(const std::string& key) const {
  std::vector<std::pair<std::string, ManifestTable>> made;
  const Json* value = find(key);
  if (!value) return made;
  if (!value->is_object()) fail_type(key, "a table", *value);
  for (const auto& [name, table] : value->as_object()) {
    if (!is_name(name)) {
      fail(key, "'" + name + "' is not a name: letters, digits, '_', '-', '.' and '+' make one.");
    }
    made.emplace_back(name, ManifestTable(table, where_, full(key) + "." + name));
  }
  return made;
}

void ManifestTable::reject_unread() const {
  for (const auto& [key, value] : json_->as_object()) {
    if (!read_->contains(key)) {
      fail(key, "unknown key." + suggestion(key, std::vector<std::string>(read_->begin(), read_->end())));
    }
  }
}

void ManifestTable::fail(const std::string& key, const std::string& message) const {
  throw PluginError(where_ + ": " + (key.empty() ? path_ : full(key)) + ": " + message);
}

void ManifestTable::fail_type(const std::string& key, const std::string& wanted, const Json& found) const {
  fail(key, "must be " + wanted + ", got " + found.dump() + ".");
}

}  // namespace capstan
