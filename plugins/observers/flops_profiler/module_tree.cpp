#include "module_tree.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace capstan::profiler {
namespace {

/// "blocks.0.fc.weight" -> "blocks.0.fc"
std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

bool is_within(std::string_view path, std::string_view around) {
  return around.empty() || path == around ||
         (path.starts_with(around) && path.size() > around.size() && path[around.size()] == '.');
}

/// The innermost module that holds both.
std::string common(std::string one, const std::string& other) {
  while (!is_within(other, one)) one = parent_of(one);
  return one;
}

/// "torch::nn::LinearImpl" -> "Linear"
std::string short_class(std::string name) {
  const std::size_t arguments = name.find('<');
  if (arguments != std::string::npos) name.resize(arguments);
  const std::size_t colons = name.rfind("::");
  if (colons != std::string::npos) name.erase(0, colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

/// The owner of the nearest record with a parameter, looking from `index` in steps of `step`, as long as records belong
/// to the same run of the same layer.
std::optional<std::string> neighbour(const std::vector<OpRecord>& records, std::size_t index, int step) {
  for (auto i = static_cast<std::ptrdiff_t>(index) + step; i >= 0 && i < static_cast<std::ptrdiff_t>(records.size());
       i += step) {
    const OpRecord& record = records[static_cast<std::size_t>(i)];
    if (record.backward || record.scope_id != records[index].scope_id) return std::nullopt;
    if (!record.parameter.empty()) return parent_of(record.parameter);
  }
  return std::nullopt;
}

std::string place_of(const std::vector<OpRecord>& records, std::size_t index) {
  const OpRecord& record = records[index];
  if (!record.parameter.empty()) return parent_of(record.parameter);
  const auto before = neighbour(records, index, -1), after = neighbour(records, index, 1);
  if (before && after) {
    const std::string shared = common(*before, *after);
    return is_within(shared, record.scope) ? shared : record.scope;
  }
  return record.scope;
}

Module& child(Module& parent, const std::string& name) {
  for (const auto& one : parent.children) {
    if (one->name == name) return *one;
  }
  auto& made = *parent.children.emplace_back(std::make_unique<Module>());
  made.name = name;
  made.path = parent.path.empty() ? name : parent.path + "." + name;
  return made;
}

Module& module_at(Module& root, std::string_view path) {
  Module* at = &root;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    at = &child(*at, std::string(path.substr(0, dot)));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return *at;
}

void sum_up(Module& module) {
  module.forward = module.own_forward;
  module.backward = module.own_backward;
  for (const auto& one : module.children) {
    sum_up(*one);
    module.params += one->params;
    module.forward += one->forward;
    module.backward += one->backward;
  }
  if (module.class_name.empty()) module.class_name = module.children.empty() ? "Module" : "ModuleList";
}

}  // namespace

std::vector<std::string> places_of(const std::vector<OpRecord>& records) {
  std::vector<std::string> places(records.size());
  std::vector<std::pair<std::int64_t, std::size_t>> numbered;  // autograd's number before a forward operator, its index
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].backward) continue;
    places[i] = place_of(records, i);
    if (records[i].sequence >= 0) numbered.emplace_back(records[i].sequence, i);
  }
  // Where several operators share a number, only the last made a node.
  std::stable_sort(numbered.begin(), numbered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!records[i].backward || records[i].sequence < 0) continue;
    const auto after = std::upper_bound(numbered.begin(), numbered.end(), records[i].sequence,
                                        [](std::int64_t number, const auto& entry) { return number < entry.first; });
    if (after != numbered.begin()) places[i] = places[std::prev(after)->second];
  }
  return places;
}

Module module_tree(const ModelShape& shape, const std::vector<OpRecord>& records) {
  Module root;
  for (const auto& [path, class_name] : shape.modules) module_at(root, path).class_name = short_class(class_name);
  for (const auto& [name, elements] : shape.parameters) {
    module_at(root, parent_of(name)).params += static_cast<double>(elements);
  }
  const std::vector<std::string> places = places_of(records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    Module& module = module_at(root, places[i]);
    (records[i].backward ? module.own_backward : module.own_forward) +=
        Work{records[i].flops, records[i].macs, records[i].latency_ms()};
  }
  sum_up(root);
  return root;
}

int depth_of(const Module& module) {
  int deepest = 0;
  for (const auto& one : module.children) deepest = std::max(deepest, depth_of(*one));
  return deepest + 1;
}

}  // namespace capstan::profiler
