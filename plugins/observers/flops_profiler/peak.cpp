#include "peak.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "timeline.hpp"

namespace capstan::profiler {

double measured_peak_flops(c10::Device device) {
  constexpr int kRuns = 5;  // the first pays for the memory
  const std::int64_t size = device.is_cpu() ? 768 : 2048;
  at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor a = at::full({size, size}, 0.5, options), b = at::full({size, size}, 0.25, options);
  Timeline timeline(device);
  std::vector<Timeline::Moment> moments{timeline.mark()};
  for (int i = 0; i < kRuns; ++i) {
    const at::Tensor c = at::mm(a, b);
    moments.push_back(timeline.mark());
  }
  timeline.settle();
  double least = timeline.ms(moments[0], moments[1]);
  for (int i = 1; i < kRuns; ++i) least = std::min(least, timeline.ms(moments[i], moments[i + 1]));
  const double n = static_cast<double>(size);
  return 2 * n * n * n / (least * 1e-3);
}

}  // namespace capstan::profiler
