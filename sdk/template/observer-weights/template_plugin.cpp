#include "template_plugin.hpp"

#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/observer.hpp>
#include <capstan/sdk/tensor.hpp>

namespace {

namespace sdk = capstan::sdk;

/// Everything runs on the engine's thread; what is thrown stops the run with its text.
class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : levels_(static_cast<int>(params.integer("levels"))) {}

  /// Asked once a parameter.
  bool selects_weight(std::string_view, std::span<const std::int64_t> shape) const { return shape.size() >= 2; }

  /// Fills `compute`, of the model's type, from `master`, which is float32 and stays as it is. The gradient of
  /// `compute` is applied to `master`.
  void transform_weight(std::string_view name, capstan_tensor master, capstan_tensor compute, std::int64_t) const {
    const auto count = static_cast<std::size_t>(sdk::numel_of(master));
    const sdk::Values to = sdk::values_of(compute);
    const bool known = to.dtype == sdk::Dtype::kFloat32 || to.dtype == sdk::Dtype::kBFloat16;
    if (!known || !sdk::on_cpu(master) || !sdk::on_cpu(compute)) {
      throw sdk::Error("parameter '" + std::string(name) +
                       "': takes float32 and bfloat16 in host memory; this one is " + sdk::dtype_name(compute) + ".");
    }
    const auto* from = static_cast<const float*>(sdk::values_of(master).data);
    const float step = template_plugin_step(from, count, levels_);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = template_plugin_round(from[i], step);
      if (to.dtype == sdk::Dtype::kFloat32) {
        static_cast<float*>(to.data)[i] = value;
      } else {
        static_cast<std::uint16_t*>(to.data)[i] = sdk::to_bfloat16(value);
      }
    }
  }

 private:
  int levels_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::observer<TemplatePlugin, "TemplatePlugin">)
