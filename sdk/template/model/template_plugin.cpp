#include "template_plugin.hpp"

#include <capstan/sdk/model.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin : public TemplatePluginModule {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params)
      : TemplatePluginModule(params.integer("width")), sequence_length_(params.integer("sequence_length")) {}

  /// What the engine may want to know: the length of a sample, for one.
  std::string describe() const {
    return "{\"sequence_length\": " + std::to_string(sequence_length_) + ", \"vocab_size\": 256}";
  }

 private:
  std::int64_t sequence_length_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::model<TemplatePlugin, "TemplatePlugin">)
