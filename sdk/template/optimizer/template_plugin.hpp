#pragma once

#include <cstddef>

/// The numbers of one parameter group.
struct TemplatePluginNumbers {
  float lr, momentum, weight_decay;
};

/// m = b*m + (1-b)*g;  w -= lr * (sign(m) + decay*w).
inline void template_plugin_element(float& weight, float& mean, float gradient, const TemplatePluginNumbers& numbers) {
  mean = numbers.momentum * mean + (1.0f - numbers.momentum) * gradient;
  const float sign = static_cast<float>(mean > 0.0f) - static_cast<float>(mean < 0.0f);
  weight -= numbers.lr * (sign + numbers.weight_decay * weight);
}
