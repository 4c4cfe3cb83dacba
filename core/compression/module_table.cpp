#include "core/compression/compression_plan.hpp"
#include "core/model/parameter_classes.hpp"

namespace capstan {

Json module_table(const Model& model, std::uint64_t seed) {
  std::map<std::string, Json> parameters;  // of each module, by its path
  for (const NamedTensor& named : model.parameters()) {
    const auto dot = named.name.rfind('.');
    Json one = Json::object();
    one["name"] = dot == std::string::npos ? named.name : named.name.substr(dot + 1);
    one["shape"] = Json::array();
    for (const std::int64_t size : named.tensor.sizes()) one["shape"].push_back(size);
    one["trained"] = named.tensor.requires_grad() && at::isFloatingType(named.tensor.scalar_type());
    Json& list = parameters[dot == std::string::npos ? "" : named.name.substr(0, dot)];
    if (list.is_null()) list = Json::array();
    list.push_back(std::move(one));
  }
  Json table = Json::object();
  table["modules"] = Json::array();
  for (const ModuleRecord& module : model.modules()) {
    Json one = Json::object();
    one["path"] = module.path;
    one["class"] = configured_class(module.class_name);
    const auto found = parameters.find(module.path);
    one["parameters"] = found == parameters.end() ? Json::array() : found->second;
    table["modules"].push_back(std::move(one));
  }
  table["seed"] = seed;
  return table;
}

}  // namespace capstan
