// What flops_profiler costs the step that it profiles: CPU time of that step against its neighbours, for gpt:tiny. The
// bound it is held against: 5 %; exit code 1 beyond it.
//
//   profiler_overhead [ROUNDS]     default: 15

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "bench/bound.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"

namespace {

using namespace capstan;

constexpr int kProfiled = 4, kSteps = 8;
constexpr double kAllowed = 1.05;

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  PluginIndex plugins;
  const Config config = load_config({R"({"train_batch_size": 4, "gradient_clipping": 0, "steps_per_print": null,
           "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
           "capstan": {"model": "gpt:tiny", "observers": [{"type": "flops_profiler",
             "params": {"profile_step": 4, "peak_tflops": 1, "output_file": "/dev/null"}}]}})",
                                     "bench", false},
                                    {}, plugins);
  Registry registry(plugins);
  const ComponentChoice& model = *config.run.model;
  const at::Tensor tokens = at::randint(256, {4, 128}, at::kLong);
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    Engine engine(Model(registry.create(model.where, model.kind, model.type, model.params, model_host())), config,
                  plugins);
    std::vector<double> others;
    double profiled = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double begin = cpu_ms();
      engine.train_batch([&] {
        Batch batch;
        batch.tensors.emplace("input_ids", tokens);
        batch.tensors.emplace("labels", tokens);
        return batch;
      });
      const double took = cpu_ms() - begin;
      if (step == kProfiled) {
        profiled = took;
      } else if (step >= 2) {  // the first pay for memory
        others.push_back(took);
      }
    }
    ratios.push_back(profiled / median(others));
  }
  const double ratio = median(ratios);
  const bool met = ratio <= kAllowed;
  std::printf("%d rounds: the profiled step takes %+.1f %% CPU time, allowed %+g %%%s\n", rounds, 100 * (ratio - 1),
              100 * (kAllowed - 1), bench::mark(met));
  return bench::exit_code(met);
}
