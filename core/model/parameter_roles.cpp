#include "core/model/parameter_roles.hpp"

#include <algorithm>
#include <optional>

#include "core/errors.hpp"
#include "core/registry/parameter_role.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

/// The class without its namespaces: "Linear" of "torch.nn.Linear".
std::string short_name(const std::string& class_name) { return class_name.substr(class_name.rfind('.') + 1); }

bool contains(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

capstan_param_role derived_role(const NamedTensor& parameter, const std::string& class_name) {
  if (contains(class_name, "Embedding")) return CAPSTAN_PARAM_EMBEDDING;
  if (contains(class_name, "Norm")) return CAPSTAN_PARAM_NORM;
  if (contains(parameter.name.substr(parameter.name.rfind('.') + 1), "bias")) return CAPSTAN_PARAM_BIAS;
  return parameter.tensor.dim() >= 2 ? CAPSTAN_PARAM_MATRIX : CAPSTAN_PARAM_OTHER;
}

/// Whether a matrix, the last of a Linear, gives logits.
bool gives_logits(const at::Tensor& matrix, const std::vector<NamedTensor>& parameters, const Json& facts) {
  const Json* words = facts.find("vocab_size");
  if (words && words->is_integer()) return matrix.size(0) == words->as_integer();
  bool embeds = false;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.role != CAPSTAN_PARAM_EMBEDDING) continue;
    if (parameter.tensor.sizes() == matrix.sizes()) return true;
    embeds = true;
  }
  return !embeds;
}

void find_head(std::vector<NamedTensor>& parameters, const ParameterClasses& classes, const Json& facts) {
  const auto last = std::find_if(parameters.rbegin(), parameters.rend(), [&](const NamedTensor& parameter) {
    return parameter.role == CAPSTAN_PARAM_MATRIX && short_name(classes.of(parameter.name)) == "Linear";
  });
  if (last != parameters.rend() && gives_logits(last->tensor, parameters, facts)) last->role = CAPSTAN_PARAM_HEAD;
}

std::string all_roles() {
  std::string text;
  for (const std::string& name : parameter_role_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// What the model says itself.
void read_roles(std::vector<NamedTensor>& parameters, const Json& roles, const std::string& where) {
  if (!roles.is_object()) throw PluginError(where + ": roles: must be an object, got " + roles.dump() + ".");
  for (const auto& [name, given] : roles.as_object()) {
    const auto named = [&key = name](const NamedTensor& parameter) { return parameter.name == key; };
    const auto parameter = std::find_if(parameters.begin(), parameters.end(), named);
    if (parameter == parameters.end()) {
      std::vector<std::string> known;
      for (const NamedTensor& one : parameters) known.push_back(one.name);
      throw PluginError(where + ": roles: the model shows no parameter '" + name + "'." + suggestion(name, known));
    }
    const std::string text = given.is_string() ? given.as_string() : given.dump();
    const auto role = parameter_role_named(text);
    if (!role) {
      throw PluginError(where + ": roles." + name + ": must be one of " + all_roles() + ", got '" + text + "'." +
                        suggestion(text, parameter_role_names()));
    }
    parameter->role = *role;
  }
}

}  // namespace

void find_roles(std::vector<NamedTensor>& parameters, const ParameterClasses& classes, const Json& facts,
                const std::string& where) {
  for (NamedTensor& parameter : parameters) {
    parameter.role = derived_role(parameter, short_name(classes.of(parameter.name)));
  }
  find_head(parameters, classes, facts);
  if (const Json* roles = facts.find("roles")) read_roles(parameters, *roles, where);
}

}  // namespace capstan
