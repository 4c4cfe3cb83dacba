// What the engine adds to a step: a model of 100 small tensors, trained by the engine and by a bare C++ loop with
// at::_fused_adamw_ and one step counter for all tensors, in turn, clipping off on both sides. Prints medians and the
// difference in microseconds a step. The bound it is held against: 10 us + 0.1 us a tensor; exit code 1 beyond it.
//
//   engine_overhead [ROUNDS, default 41]
//   engine_overhead engine|bare STEPS     one of the two alone: bench/engine_overhead counts its instructions
//   engine_overhead one STEPS             processor time of a step of one operator in the engine, in microseconds, for
//                                         bench/python/engine_in_python
//   engine_overhead torch STEPS           the same of that operator's forward and backward by LibTorch alone

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "core/engine/engine.hpp"
#include "core/memory/tensor_handle.hpp"

namespace {

using namespace capstan;

constexpr int kLayers = 50;  // two tensors each
constexpr std::int64_t kWidth = 16, kRows = 8;
constexpr int kWarmUp = 200;

struct SmallModel {
  std::vector<at::Tensor> parameters;
  const bool one_operator;

  explicit SmallModel(bool one_operator = false) : one_operator(one_operator) {
    if (one_operator) {
      parameters.push_back(at::ones({kRows}).requires_grad_());
      return;
    }
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(7);
    for (int i = 0; i < kLayers; ++i) {
      parameters.push_back(at::randn({kWidth, kWidth}).mul_(0.2).requires_grad_());
      parameters.push_back(at::zeros({kWidth}).requires_grad_());
    }
  }
  at::Tensor loss(const at::Tensor& input) const {
    if (one_operator) return at::dot(parameters[0], input);
    at::Tensor hidden = input;
    for (int i = 0; i < kLayers; ++i) hidden = at::tanh(at::linear(hidden, parameters[2 * i], parameters[2 * i + 1]));
    return hidden.pow(2).mean();
  }
};

const capstan_model kModelTable = [] {
  capstan_model table{};
  table.struct_size = sizeof table;
  table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
    int index = 0;
    for (const at::Tensor& parameter : static_cast<SmallModel*>(self)->parameters) {
      visitor->tensor(visitor->ctx, as_str("p" + std::to_string(index++)), handle_of(parameter),
                      CAPSTAN_ROLE_PARAMETER);
    }
    return CAPSTAN_OK;
  };
  table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
    const at::Tensor& input = batch->tensors.find("x")->second;
    *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(static_cast<SmallModel*>(self)->loss(input)));
    return CAPSTAN_OK;
  };
  table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
  return table;
}();

/// The same model trained by hand.
struct BareLoop {
  SmallModel model;
  at::Tensor counter = at::zeros({});
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, steps;

  BareLoop() {
    for (const at::Tensor& parameter : model.parameters) {
      exp_avgs.push_back(at::zeros(parameter.sizes()));
      exp_avg_sqs.push_back(at::zeros(parameter.sizes()));
    }
    steps.assign(model.parameters.size(), counter);
  }
  void step(const at::Tensor& input) {
    model.loss(input).backward();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model.parameters) gradients.push_back(parameter.grad());
    counter.add_(1);
    at::_fused_adamw_(model.parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
  }
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Timing {
  std::vector<double> wall_us, cpu_us;

  void run(int steps, const std::function<void()>& step) {
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) step();
    const std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - begin;
    wall_us.push_back(wall.count() / steps);
    cpu_us.push_back((cpu_seconds() - cpu) * 1e6 / steps);
  }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }
};

/// The model trained by the engine.
struct EngineLoop {
  SmallModel model;
  PluginIndex plugins;
  Config config = load_config({model.one_operator ? kSgd : kAdamW, "bench", false}, {}, plugins);
  Engine engine{Model(
                    &kModelTable, &model, [](void*) {}, "small"),
                config, plugins};

  explicit EngineLoop(bool one_operator = false) : model(one_operator) {}

  static constexpr const char* kAdamW =
      R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
          "gradient_clipping": 0, "steps_per_print": null})";
  static constexpr const char* kSgd =
      R"({"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 1e-9}}, "gradient_clipping": 0,
          "steps_per_print": null})";

  void step(const at::Tensor& input) {
    engine.train_batch([&] {
      Batch batch;
      batch.tensors.emplace("x", input);
      return batch;
    });
  }
};

template <class Loop>
void repeat(const at::Tensor& input, int steps) {
  Loop loop;
  for (int i = 0; i < steps; ++i) loop.step(input);
}

int compare(const at::Tensor& input, int rounds) {
  constexpr int kStepsARound = 50;
  EngineLoop engine;
  BareLoop bare;
  Timing engine_timing, bare_timing;
  for (int i = 0; i < kWarmUp; ++i) {
    engine.step(input);
    bare.step(input);
  }
  for (int i = 0; i < rounds; ++i) {
    engine_timing.run(kStepsARound, [&] { engine.step(input); });
    bare_timing.run(kStepsARound, [&] { bare.step(input); });
  }
  const double engine_us = Timing::median(engine_timing.wall_us), bare_us = Timing::median(bare_timing.wall_us);
  const double allowed = 10 + 0.1 * 2 * kLayers;
  const bool met = engine_us - bare_us <= allowed;
  std::printf("threads %d, %d tensors, %d rounds of %d steps\n", at::get_num_threads(), 2 * kLayers, rounds,
              kStepsARound);
  std::printf("engine      %8.1f us a step (cpu %8.1f)\n", engine_us, Timing::median(engine_timing.cpu_us));
  std::printf("bare loop   %8.1f us a step (cpu %8.1f), at::_fused_adamw_, one counter\n", bare_us,
              Timing::median(bare_timing.cpu_us));
  std::printf("difference  %+8.1f us a step, allowed %+.1f; ratio %.3f%s\n", engine_us - bare_us, allowed,
              engine_us / bare_us, bench::mark(met));
  return bench::exit_code(met);
}

/// The least of eight rounds, which a busy machine disturbs least.
int show_least(int steps, const std::function<void()>& step) {
  for (int i = 0; i < 1000; ++i) step();
  Timing timing;
  for (int round = 0; round < 8; ++round) timing.run(std::max(1, steps / 8), step);
  std::printf("%.2f\n", *std::min_element(timing.cpu_us.begin(), timing.cpu_us.end()));
  return 0;
}

int show_one_operator(int steps) {
  const at::Tensor input = at::ones({kRows});
  EngineLoop engine(true);
  return show_least(steps, [&] { engine.step(input); });
}

int show_torch_alone(int steps) {
  const at::Tensor input = at::ones({kRows});
  SmallModel model(true);
  return show_least(steps, [&] {
    model.loss(input).backward();
    model.parameters[0].mutable_grad().reset();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const at::Tensor input = at::randn({kRows, kWidth});
  const std::string only = argc > 2 ? argv[1] : "";
  if (only == "engine") return repeat<EngineLoop>(input, std::atoi(argv[2])), 0;
  if (only == "one") return at::set_num_threads(1), show_one_operator(std::atoi(argv[2]));
  if (only == "torch") return at::set_num_threads(1), show_torch_alone(std::atoi(argv[2]));
  if (only == "bare") return repeat<BareLoop>(input, std::atoi(argv[2])), 0;
  return compare(input, argc > 1 ? std::atoi(argv[1]) : 41);
}
