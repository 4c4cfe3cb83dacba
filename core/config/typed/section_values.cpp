#include "core/config/typed/section_values.hpp"

#include <algorithm>
#include <limits>

#include "core/text/places.hpp"

namespace capstan {
namespace {

void assign(const Json& value, bool& to) {
  if (value.is_bool()) to = value.as_bool();
}

void assign(const Json& value, std::int64_t& to) {
  if (value.is_integer()) to = value.as_integer();
}

void assign(const Json& value, int& to) {
  using Limits = std::numeric_limits<int>;
  if (value.is_integer())
    to = static_cast<int>(std::clamp<std::int64_t>(value.as_integer(), Limits::min(), Limits::max()));
}

void assign(const Json& value, double& to) {
  if (value.is_number()) to = value.as_number();
}

void assign(const Json& value, std::string& to) {
  if (value.is_string()) to = value.as_string();
}

void assign(const Json& value, Json& to) { to = value; }

template <class T>
void assign(const Json& value, std::vector<T>& to) {
  if (!value.is_array()) return;
  to.assign(value.size(), T{});
  for (std::size_t i = 0; i < to.size(); ++i) assign(value.as_array()[i], to[i]);
}

template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) return value.is_bool();
  if constexpr (std::is_same_v<T, std::int64_t>) return value.is_integer();
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  return value.is_array();
}

template <class T>
void assign(const Json& value, std::optional<T>& to) {
  if (holds<T>(value)) assign(value, to.emplace());
}

}  // namespace

std::string SectionValues::below(std::string_view name) const { return join_path(path_, name); }

void SectionValues::read(std::initializer_list<std::pair<const char*, Target>> members) const {
  for (const auto& [key, target] : members) {
    if (read_paths_) read_paths_->insert(below(key));
    if (const Json* value = find(key)) std::visit([&](auto* to) { assign(*value, *to); }, target);
  }
}

SectionValues SectionValues::section(const char* name) const {
  if (read_paths_) read_paths_->insert(below(name));
  return {find(name), below(name), read_paths_};
}

void SectionValues::read_named(const char* placeholder, std::map<std::string, std::string>& to) const {
  if (read_paths_) read_paths_->insert(below(placeholder));
  if (!values_) return;
  for (const auto& [name, value] : values_->as_object()) assign(value, to[name]);
}

std::vector<std::pair<std::string, SectionValues>> SectionValues::named(const char* placeholder) const {
  if (read_paths_) read_paths_->insert(below(placeholder));
  std::vector<std::pair<std::string, SectionValues>> out;
  if (!values_) return out;
  for (const auto& [name, value] : values_->as_object()) {
    if (value.is_object()) out.emplace_back(name, SectionValues(&value, below(placeholder), read_paths_));
  }
  return out;
}

std::vector<SectionValues> SectionValues::elements(const char* key) const {
  if (read_paths_) read_paths_->insert(below(key));
  std::vector<SectionValues> out;
  const Json* list = find(key);
  if (!list || !list->is_array()) return out;
  for (const Json& item : list->as_array()) out.emplace_back(&item, below(key) + "[]", read_paths_);
  return out;
}

}  // namespace capstan
