#include "template_plugin.hpp"

#include <cstdio>

int main() {
  torch::manual_seed(1);
  TemplatePluginModule model(32);
  const at::Tensor text = torch::arange(65).remainder(7).unsqueeze(0) + 'a';
  const at::Tensor inputs = text.narrow(1, 0, 64), labels = text.narrow(1, 1, 64);
  torch::optim::AdamW optimizer(model.parameters(), 0.01);

  const double before = model.forward(inputs, labels).item<double>();
  for (int i = 0; i < 30; ++i) {
    optimizer.zero_grad();
    model.forward(inputs, labels).backward();
    optimizer.step();
  }
  const double after = model.forward(inputs, labels).item<double>();
  if (after < before / 4) return 0;
  std::printf("the loss fell from %g to %g only\n", before, after);
  return 1;
}
