#include "quantization_method.hpp"

#include <algorithm>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::compression {

QuantizationKeys::QuantizationKeys(const sdk::Params& params) : scopes(read_scopes(params, kWeightSection)) {
  offset = shared_integer(params, "schedule_offset", 0);
  groups = static_cast<std::uint64_t>(shared_integer(params, "quantize_groups", 1));
  symmetric = shared_text(params, "quantization_type", "symmetric") == "symmetric";
  const std::vector<std::string> corrections = params.texts("corrections");
  half_scales = std::find(corrections.begin(), corrections.end(), "fp16-scales") != corrections.end();
}

std::int64_t QuantizationKeys::of_group(const sdk::Params& params, const GroupScope& scope, const std::string& key,
                                        std::int64_t otherwise) {
  const std::string path = "/different_groups/" + sdk::Params::escaped(scope.name) + "/params/" + key;
  return params.has(path) ? params.integer(path) : otherwise;
}

void require(bool condition, const std::string& where, const std::string& text) {
  if (!condition) throw sdk::ConfigMistake(where, text);
}

void check_groups(const sdk::ModelModule& module, std::uint64_t numel, std::uint64_t groups) {
  if (groups <= numel && numel % groups == 0) return;
  std::uint64_t below = std::min(groups, numel), above = groups;
  while (below > 1 && numel % below != 0) --below;
  while (above < numel && numel % above != 0) ++above;
  std::string fits = std::to_string(below);
  if (above <= numel && numel % above == 0 && above != below) fits += " and " + std::to_string(above);
  throw sdk::ConfigMistake(kWeightSection + ".shared_parameters.quantize_groups",
                           std::to_string(groups) + " does not divide the weight of '" + module.path + "', which has " +
                               std::to_string(numel) + " elements; " + fits +
                               (fits.find(' ') == std::string::npos ? " does." : " do."));
}

ChosenModules choose_modules(const sdk::ModelTable& model, const std::vector<GroupScope>& scopes) {
  const std::vector<ModuleKind> all = {ModuleKind::kLinear, ModuleKind::kConv2d, ModuleKind::kEmbedding};
  const auto fits = [](const sdk::ModelModule& module) { return kind_of(module) != ModuleKind::kOther; };
  return {select_modules(model, scopes, all, {ModuleKind::kLinear, ModuleKind::kConv2d}),
          static_cast<std::size_t>(std::count_if(model.modules.begin(), model.modules.end(), fits))};
}

}  // namespace capstan::compression
