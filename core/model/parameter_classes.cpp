#include "core/model/parameter_classes.hpp"

#include <algorithm>
#include <set>
#include <string_view>

namespace capstan {

std::string configured_class(std::string_view name) {
  if (name.ends_with("Impl")) name.remove_suffix(4);
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool separator = name.substr(i).starts_with("::");
    text += separator ? '.' : name[i];
    i += separator;
  }
  return text;
}

ParameterClasses::ParameterClasses(const Model& model) {
  for (const ModuleRecord& module : model.modules()) of_module_[module.path] = configured_class(module.class_name);
}

std::string ParameterClasses::of(const std::string& parameter) const {
  const auto dot = parameter.rfind('.');
  const auto found = of_module_.find(dot == std::string::npos ? "" : parameter.substr(0, dot));
  return found == of_module_.end() ? "" : found->second;
}

bool ParameterClasses::has(const std::string& class_name) const {
  return std::any_of(of_module_.begin(), of_module_.end(), [&](const auto& one) { return one.second == class_name; });
}

std::string ParameterClasses::text() const {
  std::set<std::string> names;
  for (const auto& [path, name] : of_module_) names.insert(name);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace capstan
