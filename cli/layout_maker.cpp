#include "cli/layout_maker.hpp"

#include "core/config/component_params.hpp"
#include "core/registry/host.hpp"

namespace capstan::cli {
namespace {

Component component_of(const Config& config, const PluginIndex& plugins, Registry& registry, const capstan_host& host) {
  const ComponentChoice& choice = *config.attention;
  return registry.create(choice.where, choice.kind, choice.type, component_params(choice, config, plugins), &host,
                         choice.device);
}

}  // namespace

LayoutMaker::LayoutMaker(const Config& config, const PluginIndex& plugins)
    : config_(config),
      registry_(plugins, config.plugin_sha256),
      host_(make_host()),
      component_(component_of(config, plugins, registry_, host_)) {}

BlockLayout LayoutMaker::layout(std::int64_t heads, std::int64_t tokens, bool causal) const {
  return make_layout(component_, config_.attention->where, heads, tokens, causal, config_.run.seed);
}

}  // namespace capstan::cli
