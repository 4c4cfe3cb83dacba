#include "template_plugin.hpp"

#include <capstan/sdk/attention.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params)
      : block_(static_cast<std::uint32_t>(params.integer("block"))),
        window_(static_cast<std::uint32_t>(params.integer("window"))),
        stride_(static_cast<std::uint32_t>(params.integer("stride"))) {}

  sdk::AttentionFacts facts() const { return {block_, /*causal=*/true}; }
  void layout(const sdk::AttentionShape& shape, sdk::AttentionCells& cells) const {
    for (std::uint32_t row = 0; row < shape.blocks; ++row) {
      for (std::uint32_t column = 0; column <= row; ++column) {
        cells.set(0, row, column, template_plugin_attends(row, column, window_, stride_));
      }
    }
    cells.copy_first_head();
  }

 private:
  std::uint32_t block_, window_, stride_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::attention<TemplatePlugin, "TemplatePlugin">)
