#include "cli/model_shapes.hpp"

#include <optional>

#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/memory/shapes_only.hpp"
#include "core/registry/registry.hpp"

namespace capstan::cli {

Model model_shapes(const Config& config, const PluginIndex& plugins, bool with_values) {
  Registry registry(plugins, config.plugin_sha256);
  const ComponentChoice& choice = *config.run.model;
  std::optional<ShapesOnly> shapes_only;
  if (!with_values) shapes_only.emplace();
  try {
    return Model(registry.create(choice.where, "model", choice.type, choice.params, model_host()));
  } catch (const PluginError& error) {
    if (with_values) throw;
    throw PluginError(std::string(error.what()) +
                      " (It was built without values. Where its code reads values while it is built, --with-values "
                      "builds it whole, in this process's memory.)");
  }
}

}  // namespace capstan::cli
