#include "template_plugin.hpp"

#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>

namespace {

namespace sdk = capstan::sdk;

/// The numbers of one parameter group.
struct Numbers {
  float lr, other_lr, momentum;
  int steps;
};

class TemplatePlugin {
 public:
  // Parameters were checked against plugin.toml; check here only what it cannot say.
  TemplatePlugin(const sdk::Host&, const sdk::Params&) {}

  /// One update may come in several calls with other slots, so keep nothing between calls but what plugin.toml declares
  /// as state.
  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([](const sdk::Group& group) {
      return Numbers{static_cast<float>(group.number("lr")), static_cast<float>(group.number("other_lr")),
                     static_cast<float>(group.number("momentum")), static_cast<int>(group.number("steps"))};
    });
    const float scale = static_cast<float>(step.grad_scale());
    for (const sdk::Slot slot : slots) {
      if (slot.role() == sdk::Role::kMatrix) {
        update_matrix(slot, numbers[slot.group()], scale);
      } else {
        update_other(slot, numbers[slot.group()], scale);
      }
    }
  }

 private:
  static void update_matrix(const sdk::Slot& slot, const Numbers& numbers, float scale) {
    float *weights = slot.param(), *momentum = slot.floats(0);
    const sdk::Values gradients = slot.grad();  // float32, bfloat16 or float16
    std::vector<float> direction(slot.numel());
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      const float gradient = sdk::value_at(gradients, i) * scale;
      momentum[i] = numbers.momentum * momentum[i] + gradient;
      direction[i] = gradient + numbers.momentum * momentum[i];
    }
    // A kernel of more dimensions counts as a matrix with a row for each output.
    template_plugin_orthogonalize(direction, static_cast<std::size_t>(slot.full_shape()[0]), numbers.steps);
    for (std::size_t i = 0; i < slot.numel(); ++i) weights[i] -= numbers.lr * direction[i];
  }

  static void update_other(const sdk::Slot& slot, const Numbers& numbers, float scale) {
    float *weights = slot.param(), *mean = slot.floats(1);
    const sdk::Values gradients = slot.grad();
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      mean[i] = numbers.momentum * mean[i] + (1 - numbers.momentum) * sdk::value_at(gradients, i) * scale;
      weights[i] -= numbers.other_lr * mean[i];
    }
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<TemplatePlugin, "TemplatePlugin">)
