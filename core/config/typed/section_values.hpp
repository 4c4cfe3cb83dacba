#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
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
                              std::vector<std::string>*, Json*, std::optional<bool>*, std::optional<std::int64_t>*,
                              std::optional<double>*, std::optional<std::string>*,
                              std::optional<std::vector<std::int64_t>>*, std::optional<std::vector<std::string>>*>;

  /// `values`: the section's object, or null when it is absent. `path`: as the table of the language writes it.
  /// `read_paths`, when given, receives the path of each key that is asked for.
  SectionValues(const Json* values, std::string path, std::set<std::string>* read_paths = nullptr)
      : values_(values && values->is_object() ? values : nullptr), path_(std::move(path)), read_paths_(read_paths) {}

  bool present() const { return values_ != nullptr; }
  void read(std::initializer_list<std::pair<const char*, Target>> members) const;
  /// A section inside this one.
  SectionValues section(const char* name) const;
  /// Its members, when their names are the user's choice; `placeholder` is what the table calls them: "<group>".
  void read_named(const char* placeholder, std::map<std::string, std::string>& to) const;
  /// The same where the members are sections.
  std::vector<std::pair<std::string, SectionValues>> named(const char* placeholder) const;
  /// The objects of a list: "parameter_groups".
  std::vector<SectionValues> elements(const char* key) const;

 private:
  std::string below(std::string_view name) const;
  const Json* find(std::string_view name) const { return values_ ? values_->find(name) : nullptr; }

  const Json* values_;
  std::string path_;
  std::set<std::string>* read_paths_;
};

}  // namespace capstan
