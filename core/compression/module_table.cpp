#include <map>

#include "core/compression/compression_plan.hpp"
#include "core/model/parameter_classes.hpp"

namespace capstan {

namespace {

/// The tensors of each module, by its path.
std::map<std::string, Json> by_module(const std::vector<NamedTensor>& tensors, bool parameters) {
  std::map<std::string, Json> lists;
  for (const NamedTensor& named : tensors) {
    const auto dot = named.name.rfind('.');
    Json one = Json::object();
    one["name"] = dot == std::string::npos ? named.name : named.name.substr(dot + 1);
    one["shape"] = Json::array();
    for (const std::int64_t size : named.tensor.sizes()) one["shape"].push_back(size);
    if (parameters) one["trained"] = named.trained() && at::isFloatingType(named.tensor.scalar_type());
    Json& list = lists[dot == std::string::npos ? "" : named.name.substr(0, dot)];
    if (list.is_null()) list = Json::array();
    list.push_back(std::move(one));
  }
  return lists;
}

Json list_of(const std::map<std::string, Json>& lists, const std::string& path) {
  const auto found = lists.find(path);
  return found == lists.end() ? Json::array() : found->second;
}

}  // namespace

Json module_table(const Model& model, std::uint64_t seed) {
  const auto parameters = by_module(model.parameters(), true), buffers = by_module(model.buffers(), false);
  const Json description = model.describe();
  const Json* fused = description.find("fused");
  Json table = Json::object();
  table["modules"] = Json::array();
  for (const ModuleRecord& module : model.modules()) {
    Json one = Json::object();
    one["path"] = module.path;
    one["class"] = configured_class(module.class_name);
    one["parameters"] = list_of(parameters, module.path);
    if (buffers.contains(module.path)) one["buffers"] = list_of(buffers, module.path);
    const Json* layers = fused != nullptr && fused->is_object() ? fused->find(module.path) : nullptr;
    if (layers != nullptr && layers->is_integer() && layers->as_integer() > 1) one["fused"] = *layers;
    table["modules"].push_back(std::move(one));
  }
  table["seed"] = seed;
  return table;
}

}  // namespace capstan
