#include "core/config/typed/section_values.hpp"

#include <algorithm>
#include <limits>

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
}

template <class T>
void assign(const Json& value, std::optional<T>& to) {
  if (holds<T>(value)) assign(value, to.emplace());
}

}  // namespace

void SectionValues::read(std::initializer_list<std::pair<const char*, Target>> members) const {
  for (const auto& [key, target] : members) {
    if (const Json* value = find(key)) std::visit([&](auto* to) { assign(*value, *to); }, target);
  }
}

void SectionValues::read_named(std::map<std::string, std::string>& to) const {
  if (!values_) return;
  for (const auto& [name, value] : values_->as_object()) assign(value, to[name]);
}

}  // namespace capstan
