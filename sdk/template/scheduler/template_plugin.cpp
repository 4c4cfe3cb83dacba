#include "template_plugin.hpp"

#include <capstan/sdk/scheduler.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params)
      : warmup_updates_(params.integer("warmup_updates")), half_life_(params.number("half_life")) {}

  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    return template_plugin_rate(update_index, base_lr, warmup_updates_, half_life_);
  }

 private:
  std::int64_t warmup_updates_;
  double half_life_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::scheduler<TemplatePlugin, "TemplatePlugin">)
