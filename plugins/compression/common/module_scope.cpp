#include "module_scope.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <regex>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::compression {
namespace {

constexpr std::size_t kNearest = 3;

std::string_view class_of(const sdk::ModelModule& module) {
  std::string_view name = module.class_name;
  if (name.ends_with("Impl")) name.remove_suffix(4);
  return name;
}

/// The least number of letters to insert, delete or change (Levenshtein 1966).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest_paths(const std::string& pattern, const std::vector<const sdk::ModelModule*>& modules) {
  std::vector<const sdk::ModelModule*> near = modules;
  const auto closer = [&](const sdk::ModelModule* a, const sdk::ModelModule* b) {
    return distance(pattern, a->path) < distance(pattern, b->path);
  };
  const std::size_t count = std::min(kNearest, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end(), closer);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? " Nearest: '" : ", '") + near[i]->path + "'";
  return text.empty() ? " The model has no module of a kind that the method fits." : text + ".";
}

std::regex expression_of(const std::string& pattern, const std::string& where) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& fault) {
    throw sdk::ConfigMistake(where, "'" + pattern + "' is not a regular expression: " + fault.what() + ".");
  }
}

bool contains(const std::vector<ModuleKind>& kinds, ModuleKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

/// Goes through the groups, and remembers which one has a module already.
class Selector {
 public:
  Selector(const sdk::ModelTable& model, const std::vector<ModuleKind>& allowed,
           const std::vector<ModuleKind>& by_default)
      : model_(model), by_default_(by_default) {
    for (const sdk::ModelModule& module : model.modules) {
      if (contains(allowed, kind_of(module))) fitting_.push_back(&module);
    }
  }

  void choose(const GroupScope& scope) {
    chosen_.of_group.emplace_back();
    chosen_.of_pattern.emplace_back(scope.any ? 0 : scope.patterns.size());
    if (scope.any) {
      for (const sdk::ModelModule* module : fitting_) {
        if (contains(by_default_, kind_of(*module))) take(scope, scope.where, *module);
      }
      return;
    }
    for (std::size_t i = 0; i < scope.patterns.size(); ++i) {
      search(scope, i, scope.where + ".modules[" + std::to_string(i) + "]");
    }
    auto& modules = chosen_.of_group.back();  // in the model's order, whatever the expressions' is
    std::sort(modules.begin(), modules.end());
  }

  Selection take_chosen() { return std::move(chosen_); }

 private:
  void search(const GroupScope& scope, std::size_t index, const std::string& where) {
    const std::string& pattern = scope.patterns[index];
    const std::regex expression = expression_of(pattern, where);
    bool found = false;
    for (const sdk::ModelModule* module : fitting_) {
      if (!std::regex_search(module->path, expression)) continue;
      take(scope, where, *module);
      chosen_.of_pattern.back()[index].push_back(module);
      found = true;
    }
    if (found || explains_shared(expression, where, pattern)) return;
    chosen_.warnings.push_back(where + ": '" + pattern + "' is found in the path of no module that the method fits." +
                               nearest_paths(pattern, fitting_));
  }

  /// Whether an expression names a layer that has no weight of its own, and a warning that says so.
  bool explains_shared(const std::regex& expression, const std::string& where, const std::string& pattern) {
    for (const sdk::ModelModule& module : model_.modules) {
      const bool has_weight = module.find("weight") != nullptr;
      const std::string_view name = class_of(module);
      const bool layer = name.ends_with("Linear") || name.ends_with("Embedding") || name.ends_with("Conv2d");
      if (has_weight || !layer || !std::regex_search(module.path, expression)) continue;
      chosen_.warnings.push_back(where + ": '" + pattern + "' is found in '" + module.path +
                                 "', whose weight another module shares and has. Name that module.");
      return true;
    }
    return false;
  }

  void take(const GroupScope& scope, const std::string& where, const sdk::ModelModule& module) {
    const auto [found, is_new] = owner_.emplace(&module, where);
    if (!is_new) {
      throw sdk::ConfigMistake(where, "module '" + module.path + "' is found here and by " + found->second +
                                          ". Each module belongs to one entry of one group.");
    }
    if (!module.find("weight")->trained) {
      chosen_.warnings.push_back(scope.where + ": module '" + module.path +
                                 "' is left as it is: its weight is not trained.");
      return;
    }
    chosen_.of_group.back().push_back(&module);
  }

  const sdk::ModelTable& model_;
  const std::vector<ModuleKind>& by_default_;
  std::vector<const sdk::ModelModule*> fitting_;
  std::map<const sdk::ModelModule*, std::string> owner_;
  Selection chosen_;
};

}  // namespace

ModuleKind kind_of(const sdk::ModelModule& module) {
  const sdk::ModelModule::Parameter* weight = module.find("weight");
  if (weight == nullptr) return ModuleKind::kOther;
  const std::string_view name = class_of(module);
  const std::size_t dims = weight->shape.size();
  if (name.ends_with("Linear") && dims == 2) return ModuleKind::kLinear;
  if (name.ends_with("Conv2d") && dims == 4) return ModuleKind::kConv2d;
  if (name.ends_with("Embedding") && dims == 2) return ModuleKind::kEmbedding;
  return ModuleKind::kOther;
}

std::vector<GroupScope> read_scopes(const sdk::Params& params, const std::string& section) {
  std::vector<GroupScope> scopes;
  for (const std::string& name : params.names("different_groups")) {
    GroupScope& scope = scopes.emplace_back();
    scope.name = name;
    scope.where = section + ".different_groups." + name;
    const std::string at = "/different_groups/" + sdk::Params::escaped(name);
    scope.patterns = params.texts(at + "/modules");
    for (std::size_t i = 0; i < params.size(at + "/related_modules"); ++i) {
      scope.related.push_back(params.texts(at + "/related_modules/" + std::to_string(i)));
    }
    scope.any =
        scope.patterns.empty() || std::find(scope.patterns.begin(), scope.patterns.end(), "*") != scope.patterns.end();
  }
  return scopes;
}

std::int64_t shared_integer(const sdk::Params& params, const std::string& key, std::int64_t otherwise) {
  const std::string path = "/shared_parameters/" + key;
  return params.has(path) ? params.integer(path) : otherwise;
}

std::string shared_text(const sdk::Params& params, const std::string& key, const std::string& otherwise) {
  const std::string path = "/shared_parameters/" + key;
  return params.has(path) ? params.text(path) : otherwise;
}

Selection select_modules(const sdk::ModelTable& model, const std::vector<GroupScope>& scopes,
                         const std::vector<ModuleKind>& allowed, const std::vector<ModuleKind>& by_default) {
  Selector selector(model, allowed, by_default);
  for (const GroupScope& scope : scopes) selector.choose(scope);
  return selector.take_chosen();
}

std::vector<const sdk::ModelModule*> search_modules(const sdk::ModelTable& model, const std::string& pattern,
                                                    const std::string& where) {
  const std::regex expression = expression_of(pattern, where);
  std::vector<const sdk::ModelModule*> found;
  for (const sdk::ModelModule& module : model.modules) {
    if (module.find("weight") != nullptr && std::regex_search(module.path, expression)) found.push_back(&module);
  }
  return found;
}

std::int64_t weight_numel(const sdk::ModelModule& module) {
  std::int64_t numel = 1;
  for (const std::int64_t size : module.find("weight")->shape) numel *= size;
  return numel;
}

std::string report_line(std::string_view method, const GroupScope& group,
                        const std::vector<const sdk::ModelModule*>& modules, std::size_t of, const std::string& how) {
  std::int64_t weights = 0;
  for (const sdk::ModelModule* module : modules) weights += weight_numel(*module);
  char amount[32];
  if (weights >= 1'000'000) {
    std::snprintf(amount, sizeof amount, "%.1f M", static_cast<double>(weights) / 1e6);
  } else {
    std::snprintf(amount, sizeof amount, "%lld", static_cast<long long>(weights));
  }
  return std::string(method) + " " + group.name + ": " + std::to_string(modules.size()) + " of " + std::to_string(of) +
         " modules, " + how + ", " + amount + " weights";
}

std::string bits_text(int bits) { return std::to_string(bits) + (bits == 1 ? " bit" : " bits"); }

}  // namespace capstan::compression
