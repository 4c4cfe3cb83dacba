#include "template_plugin.hpp"

#include <capstan/sdk/metric.hpp>
#include <capstan/sdk/tensor.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : scale_(params.integer("scale")) {}

  // One number a sample, and nothing that must be measured before.
  sdk::MetricPlan start(const sdk::Document&) { return {}; }

  void measure(const sdk::Batch& samples, std::size_t count, std::int64_t* out) const {
    const capstan_tensor tokens = samples.tensor("input_ids");
    const auto shape = sdk::shape_of(tokens);
    const sdk::Values values = sdk::values_of(tokens);
    if (shape.size() != 2 || values.dtype != sdk::Dtype::kInt64) {
      throw sdk::Error("input_ids: must be int64 [samples, tokens].");
    }
    const auto columns = static_cast<std::size_t>(shape[1]);
    const auto* first = static_cast<const std::int64_t*>(values.data);
    for (std::size_t i = 0; i < count; ++i) out[i] = template_plugin_variety({first + i * columns, columns}, scale_);
  }

 private:
  std::int64_t scale_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::metric<TemplatePlugin, "TemplatePlugin">)
