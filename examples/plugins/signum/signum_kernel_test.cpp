// The kernel for device "cuda", run on the CPU: CMakeLists.txt says how. Ends with 1 where a number differs from the
// formula. CAPSTAN_LAUNCH_ORDER gives the order of the threads.
#include "signum_kernel.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  const signum::Numbers n{0.01f, 0.9f, 0.1f, 0.5f};
  std::vector<float> weights(1000), means(1000), gradients(1000);  // three whole blocks of threads and a part
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float angle = static_cast<float>(i);
    weights[i] = std::sin(angle);
    means[i] = std::sin(2 * angle);
    gradients[i] = std::sin(3 * angle);
  }
  const std::vector<float> old_weights = weights, old_means = means;
  const char* fault = signum::launch(weights.data(), means.data(), gradients.data(), signum::GradientType::kFloat32,
                                     weights.size(), n, nullptr);
  if (fault) std::printf("the launch failed: %s\n", fault);
  int wrong = fault ? 1 : 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float mean = n.momentum * old_means[i] + (1.0f - n.momentum) * (gradients[i] * n.grad_scale);
    const float sign = mean > 0 ? 1.0f : mean < 0 ? -1.0f : 0.0f;
    const float weight = old_weights[i] - n.lr * (sign + n.weight_decay * old_weights[i]);
    if (means[i] == mean && weights[i] == weight) continue;
    std::printf("element %zu is %.9g with mean %.9g; it must be %.9g with %.9g\n", i, static_cast<double>(weights[i]),
                static_cast<double>(means[i]), static_cast<double>(weight), static_cast<double>(mean));
    wrong = 1;
  }
  return wrong;
}
