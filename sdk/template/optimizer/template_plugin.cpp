#include "template_plugin.hpp"

#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  // Parameters were checked against plugin.toml; check here only what it cannot say.
  TemplatePlugin(const sdk::Host&, const sdk::Params&) {}

  /// One update may come in several calls with other slots, so keep nothing between calls but what plugin.toml declares
  /// as state.
  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([](const sdk::Group& group) {
      return TemplatePluginNumbers{static_cast<float>(group.number("lr")), static_cast<float>(group.number("momentum")),
                                   static_cast<float>(group.number("weight_decay"))};
    });
    const float scale = static_cast<float>(step.grad_scale());
    for (const sdk::Slot slot : slots) {
      float* weights = slot.param();
      float* means = static_cast<float*>(slot.state(0).data);
      const sdk::Values gradients = slot.grad();  // float32, bfloat16 or float16
      for (std::size_t i = 0; i < slot.numel(); ++i) {
        template_plugin_element(weights[i], means[i], sdk::value_at(gradients, i) * scale, numbers[slot.group()]);
      }
    }
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<TemplatePlugin, "TemplatePlugin">)
