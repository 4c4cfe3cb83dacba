// Adam on the CPU through the plugin's C functions, beside what else the machine could do with the same memory: a
// kernel that only moves the same streams, LibTorch's at::_fused_adamw_, and the latter followed by the copy to
// bfloat16. All take turns in one process on the same tensors. Prints medians and ratios; wall and CPU time.
//
//   adam_bench [elements, default 100000000] [repeats, default 9] [threads, default 1 and all]

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/components/host.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"

namespace {

using namespace capstan;

constexpr double kLr = 1e-4, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;

/// The plugin with slots of its own, without an engine.
class PluginAdam {
 public:
  PluginAdam() : index_(PluginIndex::scan()), registry_(index_), host_(make_host()) {
    add_engine_functions(host_);
    host_.ctx = &context_;
    const Json params = Json::parse(R"({"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01,
        "adam_w_mode": true, "torch_adam": false, "bias_correction": true, "amsgrad": false, "set_grad_none": true,
        "fp32_optimizer_states": true})");
    adam_.emplace(registry_.create("bench", "optimizer", "AdamW", params, &host_));
    group_.numbers = {
        {"lr", {kLr}}, {"betas", {kBeta1, kBeta2}}, {"eps", {kEps}}, {"weight_decay", {kDecay}}, {"amsgrad", {0}}};
  }

  void add(at::Tensor param, at::Tensor grad, at::Tensor exp_avg, at::Tensor exp_avg_sq, at::Tensor compute = {}) {
    slots_.push_back(std::make_unique<Slot>(Slot{{std::move(param), std::move(grad), std::move(exp_avg),
                                                  std::move(exp_avg_sq), at::zeros({1}, at::kLong), std::move(compute)},
                                                 {},
                                                 {},
                                                 0}));
    Slot& slot = *slots_.back();
    slot.states = {handle_of(slot.tensors[2]), handle_of(slot.tensors[3]), nullptr, handle_of(slot.tensors[4])};
    slot.raw.struct_size = sizeof slot.raw;
    slot.raw.name = as_str("p");
    slot.raw.param = handle_of(slot.tensors[0]);
    slot.raw.grad = handle_of(slot.tensors[1]);
    slot.raw.state = slot.states.data();
    slot.raw.numel = slot.raw.full_numel = static_cast<std::uint64_t>(slot.tensors[0].numel());
    slot.raw.compute = slot.tensors[5].defined() ? handle_of(slot.tensors[5]) : nullptr;
    slot.raw.compute_written = &slot.written;
    slot.raw.state_count = slot.states.size();
    pointers_.push_back(&slot.raw);
  }

  void update(double grad_scale = 1.0) {
    const capstan_group* groups[] = {&group_};
    const capstan_step step{sizeof step, updates_++, grad_scale, groups, 1, nullptr, 0, nullptr};
    call_plugin("AdamW", [&](capstan_error* error) {
      return adam_->vtable<capstan_optimizer>()->update(adam_->self(), pointers_.data(), pointers_.size(), &step,
                                                        nullptr, error);
    });
  }

 private:
  struct Slot {
    std::vector<at::Tensor> tensors;  // param, grad, exp_avg, exp_avg_sq, step, compute
    std::vector<capstan_tensor> states;
    capstan_slot raw;
    int written;
  };

  PluginIndex index_;
  Registry registry_;
  capstan_host host_;
  EngineHostContext context_;
  std::optional<Component> adam_;
  capstan_group group_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<const capstan_slot*> pointers_;
  std::int64_t updates_ = 0;
};

/// 28 bytes an element: reads and writes p, m, v, reads g, one addition each. What v takes has no sign: the others draw
/// its root.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3"))) void move_streams(
    float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    p[i] += g[i];
    m[i] += g[i];
    v[i] += std::fabs(g[i]);
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> wall, cpu;

  void measure(int times = 1) {
    const double cpu_begin = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) run();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    wall.push_back(elapsed.count() / times);
    cpu.push_back((cpu_seconds() - cpu_begin) / times);
  }
};

void take_turns(std::vector<Contender>& contenders, int repeats, int times = 1) {
  for (Contender& contender : contenders) contender.run();
  for (int i = 0; i < repeats; ++i) {
    for (Contender& contender : contenders) contender.measure(times);
  }
}

void print(const std::vector<Contender>& contenders, double elements) {
  const double our_wall = median(contenders[0].wall), our_cpu = median(contenders[0].cpu);
  for (const Contender& contender : contenders) {
    const double wall = median(contender.wall), cpu = median(contender.cpu);
    std::printf("  %-58s wall %9.3f ms, cpu %9.3f ms, %6.0f M elements/s of wall; to ours: wall %.3f, cpu %.3f\n",
                contender.name.c_str(), wall * 1e3, cpu * 1e3, elements / wall * 1e-6, wall / our_wall, cpu / our_cpu);
  }
}

/// Tensors that all contenders share: what they compute does not matter, that it stays finite does: numbers that are
/// not take another time, and tell that somebody computes nonsense.
struct Memory {
  explicit Memory(std::int64_t count)
      : param(at::randn({count})),
        grad(at::randn({count}).mul_(1e-3)),
        exp_avg(at::zeros({count})),
        exp_avg_sq(at::full({count}, 1e-6)),
        step(at::zeros({})) {}

  void fused_adamw() {
    step.add_(1);
    at::_fused_adamw_({param}, {grad}, {exp_avg}, {exp_avg_sq}, {}, {step}, kLr, kBeta1, kBeta2, kDecay, kEps,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  void streams() {
    at::parallel_for(0, param.numel(), 32768, [&](std::int64_t begin, std::int64_t end) {
      move_streams(param.data_ptr<float>() + begin, grad.data_ptr<float>() + begin, exp_avg.data_ptr<float>() + begin,
                   exp_avg_sq.data_ptr<float>() + begin, end - begin);
    });
  }

  void check_finite() const {
    for (const at::Tensor& tensor : {param, exp_avg, exp_avg_sq}) {
      if (tensor.isfinite().all().item<bool>()) continue;
      std::fprintf(stderr, "adam_bench: what the contenders computed is not finite.\n");
      std::exit(1);
    }
  }

  at::Tensor param, grad, exp_avg, exp_avg_sq, step;
};

void compare_fp32(std::int64_t count, int repeats) {
  Memory memory(count);
  PluginAdam adam;
  adam.add(memory.param, memory.grad, memory.exp_avg, memory.exp_avg_sq);
  std::vector<Contender> contenders = {
      {"AdamW, float32", [&] { adam.update(); }, {}, {}},
      {"the same streams moved, 28 bytes an element", [&] { memory.streams(); }, {}, {}},
      {"at::_fused_adamw_", [&] { memory.fused_adamw(); }, {}, {}}};
  take_turns(contenders, repeats);
  memory.check_finite();
  print(contenders, static_cast<double>(count));
}

void compare_bf16(std::int64_t count, int repeats) {
  Memory memory(count);
  const at::Tensor narrow_grad = memory.grad.to(at::kBFloat16);
  at::Tensor weights = memory.param.to(at::kBFloat16);
  PluginAdam adam;
  adam.add(memory.param, narrow_grad, memory.exp_avg, memory.exp_avg_sq, weights);
  std::vector<Contender> contenders = {
      {"AdamW, bfloat16 gradients: unscale, clip, update, copy", [&] { adam.update(0.5); }, {}, {}},
      {"at::_fused_adamw_ on ready float32 gradients, then the copy",
       [&] {
         memory.fused_adamw();
         weights.copy_(memory.param);
       },
       {},
       {}},
      {"gradients widened and scaled, at::_fused_adamw_, the copy",
       [&] {
         memory.grad.copy_(narrow_grad);
         memory.grad.mul_(0.5);
         memory.fused_adamw();
         weights.copy_(memory.param);
       },
       {},
       {}}};
  take_turns(contenders, repeats);
  memory.check_finite();
  print(contenders, static_cast<double>(count));
}

void compare_small(int repeats) {
  constexpr int kTensors = 100;
  constexpr std::int64_t kCount = 64;
  std::vector<Memory> memory;
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  at::Tensor counter = at::zeros({});
  const std::vector<at::Tensor> steps(kTensors, counter);
  PluginAdam adam;
  for (int i = 0; i < kTensors; ++i) {
    const Memory& one = memory.emplace_back(kCount);
    params.push_back(one.param), grads.push_back(one.grad), exp_avgs.push_back(one.exp_avg);
    exp_avg_sqs.push_back(one.exp_avg_sq);
    adam.add(one.param, one.grad, one.exp_avg, one.exp_avg_sq);
  }
  std::vector<Contender> contenders = {{"AdamW, 100 tensors of 64 elements", [&] { adam.update(); }, {}, {}},
                                       {"at::_fused_adamw_ on the same",
                                        [&] {
                                          counter.add_(1);
                                          at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, kLr,
                                                            kBeta1, kBeta2, kDecay, kEps, false, false);
                                        },
                                        {},
                                        {}}};
  take_turns(contenders, repeats, 1000);
  for (const Memory& one : memory) one.check_finite();
  print(contenders, kTensors * kCount);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 100'000'000;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 9;
  std::vector<int> threads = {1, at::get_num_threads()};
  if (argc > 3) threads = {std::atoi(argv[3])};
  const at::NoGradGuard no_grad;
  for (const int number : threads) {
    at::set_num_threads(number);
    std::printf("%d thread(s), %lld elements, median of %d\n", number, static_cast<long long>(count), repeats);
    compare_fp32(count, repeats);
    compare_bf16(count, repeats);
    compare_small(repeats);
  }
  return 0;
}
