#include <capstan/sdk/optimizer.hpp>
#include <capstan/sdk/tensors.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  // Parameters were checked against plugin.toml; check here only what it cannot say.
  TemplatePlugin(const sdk::Host&, const sdk::Params&) {}

  /// One update may come in several calls with other slots, so keep nothing between calls but what plugin.toml declares
  /// as state.
  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const std::vector<sdk::TensorSlots> groups = sdk::by_group(slots, step);
    for (std::size_t i = 0; i < groups.size(); ++i) update_group(groups[i], step.group(i), step.grad_scale());
  }

 private:
  /// LARS (You, Gitman and Ginsburg 2017): the rate of each parameter is trust * |p| / (|g| + decay * |p|). Nothing
  /// here waits for the device: numbers that are computed there stay there, as tensors of no dimension.
  static void update_group(const sdk::TensorSlots& slots, const sdk::Group& group, double grad_scale) {
    constexpr double kLeast = 1e-12;  // a length of zero neither divides nor stops a parameter
    const double decay = group.number("weight_decay");
    sdk::Tensors weights = slots.parameters(), gradients = slots.gradients(grad_scale), momentum = slots.state(0);

    sdk::Tensors ratio = weights.norm().clamp_min_(kLeast), divisor = gradients.norm();
    divisor.add_(ratio, decay).clamp_min_(kLeast);
    ratio.div_(divisor).mul_(group.number("trust"));
    gradients.add_(weights, decay).mul_(ratio);

    momentum.mul_(group.number("momentum")).add_(gradients);
    slots.store_state(0, momentum);
    weights.add_(momentum, -group.number("lr"));
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<TemplatePlugin, "TemplatePlugin">)
