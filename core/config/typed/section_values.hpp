#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// Moves the values in force of one section into typed members.
///
/// A member stays as it is when its key is absent, or holds what only autotuning accepts (a list of values to search).
class SectionValues {
 public:
  using Target = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::vector<std::int64_t>*,
                              std::vector<std::string>*, std::optional<bool>*, std::optional<std::int64_t>*,
                              std::optional<double>*, std::optional<std::string>*>;

  /// `values`: the section's object, or null when it is absent.
  explicit SectionValues(const Json* values) : values_(values && values->is_object() ? values : nullptr) {}

  bool present() const { return values_ != nullptr; }
  void read(std::initializer_list<std::pair<const char*, Target>> members) const;
  /// A section inside this one.
  SectionValues section(const char* name) const { return SectionValues(find(name)); }
  /// Its texts, when their names are the user's choice.
  void read_named(std::map<std::string, std::string>& to) const;

 private:
  const Json* find(std::string_view name) const { return values_ ? values_->find(name) : nullptr; }

  const Json* values_;
};

}  // namespace capstan
