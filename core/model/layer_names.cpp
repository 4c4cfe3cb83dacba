#include "core/model/layer_names.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

using Names = std::vector<std::string>;

std::optional<Names> told_names(const Model& model) {
  const Json facts = model.describe();
  const Json* told = facts.find("layer_names");
  if (told == nullptr || told->is_null()) return std::nullopt;
  const std::string where = "model '" + model.description() + "', describe, layer_names: ";
  if (!told->is_array()) throw PluginError(where + "must be an array of texts, got " + told->dump() + ".");
  Names names;
  for (const Json& name : told->as_array()) {
    if (!name.is_string()) throw PluginError(where + "must be an array of texts, has " + name.dump() + ".");
    if (std::find(names.begin(), names.end(), name.as_string()) != names.end()) {
      throw PluginError(where + "has '" + name.as_string() + "' twice.");
    }
    names.push_back(name.as_string());
  }
  return names;
}

/// Modules of one path that are numbered 0, 1, 2, in this order.
struct Row {
  std::string path, class_name;
  Names names;
  bool broken = false;
};

/// Whether a path has a component that is a number, before its last component: it lies in a module of a row.
bool lies_in_a_row(std::string_view path) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return true;
    begin = end + 1;
  }
  return false;
}

std::vector<Row> numbered_rows(const std::vector<ModuleRecord>& modules) {
  std::vector<Row> rows;
  std::map<std::string, std::size_t, std::less<>> places;
  for (const ModuleRecord& module : modules) {
    const std::size_t dot = module.path.rfind('.');
    const std::string around = dot == std::string::npos ? "" : module.path.substr(0, dot);
    const std::string number = dot == std::string::npos ? module.path : module.path.substr(dot + 1);
    if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || lies_in_a_row(around))
      continue;
    const auto [place, added] = places.emplace(around, rows.size());
    if (added) rows.push_back({around, module.class_name, {}});
    Row& row = rows[place->second];
    if (number != std::to_string(row.names.size()) || module.class_name != row.class_name) row.broken = true;
    row.names.push_back(module.path);
  }
  return rows;
}

}  // namespace

Names layer_names(const Model& model) {
  if (auto told = told_names(model)) return *std::move(told);
  Names longest;
  for (Row& row : numbered_rows(model.modules())) {
    if (!row.broken && row.names.size() > longest.size()) longest = std::move(row.names);
  }
  return longest;
}

}  // namespace capstan
