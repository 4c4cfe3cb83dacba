#include "core/model/saved_names.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

std::vector<std::string> tensor_names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& one : tensors) names.push_back(one.name);
  return names;
}

}  // namespace

void find_persistence(std::vector<NamedTensor>& buffers, const Json& facts, const std::string& where) {
  const Json* list = facts.find("non_persistent_buffers");
  if (list == nullptr) return;
  const std::string key = where + ": non_persistent_buffers: ";
  if (!list->is_array()) throw PluginError(key + "must be an array of names, got " + list->dump() + ".");
  for (const Json& given : list->as_array()) {
    const std::string name = given.is_string() ? given.as_string() : given.dump();
    const auto buffer =
        std::find_if(buffers.begin(), buffers.end(), [&](const NamedTensor& one) { return one.name == name; });
    if (buffer == buffers.end()) {
      throw PluginError(key + "the model shows no buffer '" + name + "'." + suggestion(name, tensor_names(buffers)));
    }
    buffer->persistent = false;
  }
}

std::map<std::string, std::string> read_tied(const std::vector<NamedTensor>& parameters,
                                             const std::vector<NamedTensor>& buffers, const Json& facts,
                                             const std::string& where) {
  std::map<std::string, std::string> tied;
  const Json* given = facts.find("tied");
  if (given == nullptr) return tied;
  if (!given->is_object()) throw PluginError(where + ": tied: must be an object, got " + given->dump() + ".");
  std::vector<std::string> shown = tensor_names(parameters);
  for (const std::string& name : tensor_names(buffers)) shown.push_back(name);
  const auto is_shown = [&](const std::string& name) {
    return std::find(shown.begin(), shown.end(), name) != shown.end();
  };
  for (const auto& [name, first] : given->as_object()) {
    const std::string target = first.is_string() ? first.as_string() : first.dump();
    const std::string key = where + ": tied." + name + ": ";
    if (is_shown(name)) throw PluginError(key + "is a tensor of its own. Leave it out.");
    if (!is_shown(target)) {
      throw PluginError(key + "the model shows no tensor '" + target + "'." + suggestion(target, shown));
    }
    tied[name] = target;
  }
  return tied;
}

}  // namespace capstan
