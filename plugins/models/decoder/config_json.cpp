#include "config_json.hpp"

#include <algorithm>
#include <cmath>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::models {
namespace {

constexpr double kLargestCount = 2147483647;

}  // namespace

void ConfigJson::refuse(const std::string& key, const std::string& why) const {
  throw sdk::ConfigMistake(path_ + "." + key, why);
}

bool ConfigJson::has(const std::string& key) const { return params_.has(pointer(key)); }

bool ConfigJson::is_null(const std::string& key) const {
  const std::vector<std::string> names = params_.names(pointer_);
  return std::find(names.begin(), names.end(), key) != names.end() && found(key) == "null";
}

double ConfigJson::number(const std::string& key) const {
  if (!has(key)) refuse(key, "is missing. A config.json of transformers has it.");
  try {
    return params_.number(pointer(key));
  } catch (const sdk::HostFailure&) {
    refuse(key, "must be a number, got " + found(key) + ".");
  }
}

double ConfigJson::number(const std::string& key, double otherwise) const { return has(key) ? number(key) : otherwise; }

double ConfigJson::positive(const std::string& key) const {
  const double value = number(key);
  if (!(value > 0)) refuse(key, "must be above 0, got " + found(key) + ".");
  return value;
}

double ConfigJson::positive(const std::string& key, double otherwise) const {
  return has(key) ? positive(key) : otherwise;
}

std::int64_t ConfigJson::count(const std::string& key) const {
  const double value = number(key);
  if (value != std::floor(value) || value < 1 || value > kLargestCount) {
    refuse(key, "must be a whole number from 1 to 2147483647, got " + found(key) + ".");
  }
  return static_cast<std::int64_t>(value);
}

std::int64_t ConfigJson::count(const std::string& key, std::int64_t otherwise) const {
  return has(key) ? count(key) : otherwise;
}

bool ConfigJson::flag(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const std::string value = found(key);
  if (value != "true" && value != "false") refuse(key, "must be true or false, got " + value + ".");
  return value == "true";
}

std::string ConfigJson::text(const std::string& key, const std::string& otherwise) const {
  return has(key) ? found(key) : otherwise;
}

std::vector<double> ConfigJson::numbers(const std::string& key) const {
  try {
    return params_.numbers(pointer(key));
  } catch (const sdk::HostFailure&) {
    refuse(key, "must be a list of numbers, got " + found(key) + ".");
  }
}

std::vector<std::string> ConfigJson::texts(const std::string& key) const { return params_.texts(pointer(key)); }

ConfigJson ConfigJson::object(const std::string& key) const {
  if (has(key) && params_.names(pointer(key)).empty()) refuse(key, "must be an object, got " + found(key) + ".");
  return ConfigJson(params_, pointer(key), path_ + "." + key);
}

}  // namespace capstan::models
