#include "template_plugin.hpp"

#include <capstan/sdk/pacing.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params)
      : first_(params.integer("first")), last_(params.integer("last")), steps_(params.integer("steps")) {}

  /// The same for every metric.
  std::int64_t difficulty(std::string_view, std::int64_t step) const {
    return template_plugin_difficulty(step, first_, last_, steps_);
  }

 private:
  std::int64_t first_, last_, steps_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::pacing<TemplatePlugin, "TemplatePlugin">)
