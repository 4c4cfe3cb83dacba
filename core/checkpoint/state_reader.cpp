#include "core/checkpoint/state_reader.hpp"

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kRemedy = " The file is damaged, or another program has changed it: load another checkpoint.";

/// A value for a message, which a long one must not fill.
std::string shown(const Json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump();
  return text.size() <= kMost ? text : std::string(value.type_name()) + " of " + std::to_string(text.size()) + " bytes";
}

}  // namespace

StateReader::StateReader(const Json& object, std::string file, std::string path)
    : object_(&object), file_(std::move(file)), path_(std::move(path)) {
  if (object.is_object()) return;
  throw RuntimeFault(file_ + ": " + (path_.empty() ? "" : path_ + ": ") + "is " + shown(object) +
                     ", and an object is expected." + kRemedy);
}

std::string StateReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const Json& StateReader::member(std::string_view key) const {
  if (const Json* found = object_->find(key)) return *found;
  throw RuntimeFault(file_ + ": " + path_of(key) + ": is missing." + kRemedy);
}

void StateReader::refuse(std::string_view key, const std::string& expected) const {
  throw RuntimeFault(file_ + ": " + path_of(key) + ": is " + shown(member(key)) + ", and " + expected +
                     " is expected." + kRemedy);
}

StateReader StateReader::object(std::string_view key) const { return {member(key), file_, path_of(key)}; }

std::vector<StateReader> StateReader::list(std::string_view key) const {
  if (!member(key).is_array()) refuse(key, "a list");
  std::vector<StateReader> items;
  for (const Json& item : member(key).as_array()) {
    items.emplace_back(item, file_, path_of(key) + "[" + std::to_string(items.size()) + "]");
  }
  return items;
}

std::int64_t StateReader::integer(std::string_view key, std::int64_t least, std::int64_t most) const {
  const Json& value = member(key);
  if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most) {
    refuse(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value.as_integer();
}

std::vector<std::int64_t> StateReader::integers(std::string_view key, std::int64_t least, std::int64_t most) const {
  const Json& list = member(key);
  std::vector<std::int64_t> values;
  const auto fits = [&](const Json& item) {
    return item.is_integer() && item.as_integer() >= least && item.as_integer() <= most;
  };
  if (!list.is_array() || !std::all_of(list.as_array().begin(), list.as_array().end(), fits)) {
    refuse(key, "a list of integers from " + std::to_string(least) + " to " + std::to_string(most));
  }
  for (const Json& item : list.as_array()) values.push_back(item.as_integer());
  return values;
}

double StateReader::number(std::string_view key) const {
  const Json& value = member(key);
  if (!value.is_number() || !std::isfinite(value.as_number())) refuse(key, "a finite number");
  return value.as_number();
}

const std::string& StateReader::text(std::string_view key) const {
  if (!member(key).is_string()) refuse(key, "a text");
  return member(key).as_string();
}

std::vector<std::pair<std::string, std::string>> StateReader::texts() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, value] : object_->as_object()) all.emplace_back(name, text(name));
  return all;
}

std::map<std::string, std::vector<double>> StateReader::lists_of_numbers() const {
  std::map<std::string, std::vector<double>> all;
  const auto fits = [](const Json& item) { return item.is_number() && std::isfinite(item.as_number()); };
  for (const auto& [name, list] : object_->as_object()) {
    const bool right =
        list.is_array() && list.size() > 0 && std::all_of(list.as_array().begin(), list.as_array().end(), fits);
    if (!right) refuse(name, "a list of finite numbers");
    for (const Json& item : list.as_array()) all[name].push_back(item.as_number());
  }
  return all;
}

}  // namespace capstan
