#include "tests/plugins/compression/quantized.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include "core/registry/host.hpp"

namespace capstan::testing {
namespace {

const capstan_host& host_alone() {
  static const capstan_host instance = [] {
    capstan_host host = make_host();
    host.tell = [](void*, capstan_str, double, capstan_error*) { return CAPSTAN_OK; };
    host.told = [](void*, capstan_str, double*, int* found, capstan_error*) {
      *found = 0;
      return CAPSTAN_OK;
    };
    return host;
  }();
  return instance;
}

}  // namespace

Compressions planned(const std::string& section_json, const char* type, const std::vector<Layer>& layers,
                     const std::vector<std::string>& corrections, const capstan_host* host) {
  const PluginIndex plugins = PluginIndex::scan();
  Registry registry(plugins);
  Json params = Json::parse(section_json);
  if (std::string(type) == "weight_quantization")
    params["corrections"] = Json(Json::Array(corrections.begin(), corrections.end()));
  Compressions made;
  made.add(registry.create("test", "compression", type, params, host ? host : &host_alone()));
  Json modules = Json::object();
  modules["modules"] = Json::array();
  for (const Layer& layer : layers) {
    Json module = Json::object();
    module["path"] = layer.path;
    module["class"] = layer.class_name;
    Json weight = Json::object();
    weight["name"] = "weight";
    weight["shape"] = Json(Json::Array(layer.shape.begin(), layer.shape.end()));
    weight["trained"] = layer.trained;
    module["parameters"] = layer.shape.empty() ? Json::array() : Json(Json::Array{weight});
    modules["modules"].push_back(module);
  }
  modules["seed"] = 1;
  made.plan(modules);
  return made;
}

at::Tensor compressed(Compressions& compressions, const Layer& layer, const at::Tensor& weight, std::int64_t updates) {
  const at::Tensor flat = weight.reshape({-1});
  CompressedParts parts;
  parts.parameters.push_back(
      {0, layer.path + ".weight", layer.shape, {0, flat.numel()}, {}, flat, at::empty_like(flat)});
  compressions.fill("test", parts, updates, /*fresh=*/true, nullptr);
  return parts.parameters.front().compute.view(layer.shape);
}

at::Tensor decoded(const WeightCodes& codes) {
  const at::Tensor rows = codes.codes.view({codes.layout.groups, -1});
  return ((rows.to(at::kFloat) - codes.zero_points.view({-1, 1}).to(at::kFloat)) * codes.scales.view({-1, 1}))
      .reshape({-1});
}

}  // namespace capstan::testing
