// What random-LTD saves, and what gathering and scattering tokens costs: user CPU time of forward and backward through
// a stack of transformer blocks on one thread, of which all but the first and the last keep half of the tokens.
//
//   random_ltd [--short] [ROUNDS]     default: 25, about an hour
//
// In each round take turns: the plain stack; the stack with the plugin around its layers; the same layers on the first
// half of the tokens, without gathering; those layers alone; and the plugin around layers that do nothing. Held are
//   - gathering and scattering, forward and backward: at most 0.02 of the layers that they serve;
//   - the saving of the plugin: at least 0.95 of that without gathering, and of that in floating point operations as
//     flops_profiler counts them.
// Each time is the least of its rounds. Exits with 1 where a bound is missed. --short: two rounds of a small stack,
// whose figures say nothing.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "capstan/layer.hpp"
#include "core/components/layer_chain.hpp"
#include "core/engine/initialize.hpp"
#include "core/registry/plugin_call.hpp"

namespace {

using namespace capstan;

struct Size {
  std::int64_t layers, width, heads, tokens;
  std::int64_t keep() const { return tokens / 2; }
  std::int64_t wrapped() const { return layers - 2; }
};

constexpr double kMostForGathering = 0.02, kLeastOfSaving = 0.95;

double user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

std::string layer_name(std::int64_t index) { return "blocks." + std::to_string(index); }

/// The blocks of gpt.
class Stack {
 public:
  explicit Stack(const Size& size) : size_(size) {
    const std::int64_t d = size.width;
    for (std::int64_t i = 0; i < size.layers; ++i) {
      blocks_.push_back({at::ones({d}), at::zeros({d}), at::randn({3 * d, d}) * 0.02, at::zeros({3 * d}),
                         at::randn({d, d}) * 0.02, at::zeros({d}), at::ones({d}), at::zeros({d}),
                         at::randn({4 * d, d}) * 0.02, at::zeros({4 * d}), at::randn({d, 4 * d}) * 0.02,
                         at::zeros({d})});
      for (at::Tensor& weight : blocks_.back()) weight.requires_grad_(true);
    }
  }

  at::Tensor run(std::int64_t layer, const at::Tensor& hidden) const {
    const auto& w = blocks_[static_cast<std::size_t>(layer)];
    const std::int64_t d = size_.width, heads = size_.heads;
    const auto norm = [&](const at::Tensor& x, std::size_t at) {
      return at::layer_norm(x, {d}, w[at], w[at + 1], 1e-5);
    };
    const auto qkv = at::linear(norm(hidden, 0), w[2], w[3])
                         .view({hidden.size(0), hidden.size(1), 3, heads, d / heads})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
    const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    const at::Tensor attended = hidden + at::linear(mixed.transpose(1, 2).reshape(hidden.sizes()), w[4], w[5]);
    return attended + at::linear(at::gelu(at::linear(norm(attended, 6), w[8], w[9]), "tanh"), w[10], w[11]);
  }

  void forget_gradients() {
    for (auto& block : blocks_) {
      for (at::Tensor& weight : block) weight.mutable_grad() = at::Tensor();
    }
  }

 private:
  Size size_;
  std::vector<std::vector<at::Tensor>> blocks_;
};

/// The plugin as an engine would run it around layers.
class Plugin {
 public:
  explicit Plugin(const Size& size) : size_(size), host_(*model_host()) {
    host_.ctx = this;
    host_.world_size = 1;
    host_.record = [](void*, capstan_str, double, capstan_error*) { return CAPSTAN_OK; };
    host_.layer_names = [](void* ctx, void* taker, void (*take)(void*, capstan_str), capstan_error*) {
      const auto& self = *static_cast<Plugin*>(ctx);
      for (std::int64_t i = 0; i < self.size_.layers; ++i) take(taker, as_str(layer_name(i)));
      return CAPSTAN_OK;
    };
    component_ = std::make_unique<Component>(
        Registry(PluginIndex::scan()).create("bench", "observer", "random_ltd", params(), &host_));
    chain_.add(*component_);
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < size.layers; ++i) names.push_back(layer_name(i));
    chain_.set_names(names);
    capstan_event event{};
    event.struct_size = sizeof event;
    event.kind = CAPSTAN_EVENT_INITIALIZED;
    capstan_error error;
    sdk::check(table().event(component_->self(), &event, &error));
    batch_.tensors.emplace("sample_position", at::arange(1, at::kLong));
    batch_.layers = &chain_;
  }

  /// Runs `model` as the forward of step `step`.
  at::Tensor forward(std::int64_t step, const std::function<at::Tensor()>& model) {
    batch_.numbers["global_step"] = static_cast<double>(step);
    batch_.numbers["micro_step"] = 0;
    capstan_error error;
    sdk::check(table().batch(component_->self(), &batch_, &error));
    const sdk::ForwardScope scope(&host_, &batch_, &error);
    return model();
  }

 private:
  const capstan_observer& table() const { return *component_->vtable<capstan_observer>(); }

  Json params() const {
    Json params = Json::object(), ids(Json::Array{});
    for (std::int64_t i = 1; i + 1 < size_.layers; ++i) ids.push_back(i);
    params["seed"] = 1;
    Json& to = params["data_routing"]["random_ltd"];
    to["total_layer_num"] = size_.layers;
    to["random_ltd_layer_num"] = size_.wrapped();
    to["random_ltd_layer_id"] = ids;
    to["model_mask_name"] = Json();
    to["model_type"] = "decoder";
    to["hidden_state_order"] = "batch_seq_dim";
    Json& schedule = to["random_ltd_schedule"];
    schedule["min_value"] = size_.keep();
    schedule["max_value"] = size_.tokens;
    schedule["schedule_config"]["require_steps"] = 1'000'000'000;
    schedule["schedule_config"]["seq_per_step"] = 1;
    return params;
  }

  Size size_;
  capstan_host host_;
  std::unique_ptr<Component> component_;
  LayerChain chain_;
  Batch batch_;
};

/// User CPU time of forward and backward.
struct Times {
  double plain, with_plugin, without_gathering, kept_layers, gathering;
};

class Round {
 public:
  explicit Round(const Size& size)
      : size_(size), stack_(size), plugin_(size), input_(at::randn({1, size.tokens, size.width})) {
    input_.requires_grad_(true);
  }

  Times run(std::int64_t step) {
    const auto through = [&](auto&& layer) {
      at::Tensor hidden = input_;
      for (std::int64_t i = 0; i < size_.layers; ++i) {
        hidden = capstan::layer(layer_name(i), hidden, [&](const at::Tensor& x) { return layer(i, x); });
      }
      return hidden;
    };
    const auto block = [&](std::int64_t i, const at::Tensor& x) { return stack_.run(i, x); };
    const auto inner = [&](at::Tensor hidden) {
      for (std::int64_t i = 1; i + 1 < size_.layers; ++i) hidden = stack_.run(i, hidden);
      return hidden;
    };
    const auto half = [&](const at::Tensor& x) { return x.narrow(1, 0, size_.keep()); };
    Times times{};
    times.plain = time([&] { return through(block); });
    times.with_plugin = time([&] { return plugin_.forward(step, [&] { return through(block); }); });
    times.without_gathering = time([&] {
      const at::Tensor first = stack_.run(0, input_);
      const at::Tensor rest = first.narrow(1, size_.keep(), size_.tokens - size_.keep());
      return stack_.run(size_.layers - 1, at::cat({inner(half(first)), rest}, 1));
    });
    times.kept_layers = time([&] { return inner(half(input_)); });
    times.gathering = time([&] {
      return plugin_.forward(step, [&] { return through([](std::int64_t, const at::Tensor& x) { return x; }); });
    });
    return times;
  }

 private:
  double time(const std::function<at::Tensor()>& forward) {
    stack_.forget_gradients();
    input_.mutable_grad() = at::Tensor();
    const double begun = user_seconds();
    const at::Tensor out = forward();
    out.backward(at::ones(out.sizes()));
    return user_seconds() - begun;
  }

  Size size_;
  Stack stack_;
  Plugin plugin_;
  at::Tensor input_;
};

using Time = double Times::*;

/// The least of the rounds: what else the machine does can only add to a time.
double least(const std::vector<Times>& rounds, Time time) {
  return (*std::min_element(rounds.begin(), rounds.end(),
                            [&](const Times& a, const Times& b) { return a.*time < b.*time; })).*
         time;
}

double median(const std::vector<Times>& rounds, Time time) {
  std::vector<double> values;
  for (const Times& one : rounds) values.push_back(one.*time);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::vector<Times> measure(const Size& size, int rounds) {
  Round round(size);
  std::vector<Times> times;
  for (int i = -1; i < rounds; ++i) {  // the first pays for memory
    const Times now = round.run(i + 1);
    if (i >= 0) times.push_back(now);
  }
  return times;
}

/// A ratio of the least times, and of the medians beside it.
struct Ratio {
  double least, median;

  template <class Of>
  Ratio(const std::vector<Times>& rounds, Of&& of)
      : least(of([&](Time time) { return ::least(rounds, time); })),
        median(of([&](Time time) { return ::median(rounds, time); })) {}
};

void print(const char* name, const Ratio& ratio, const char* allowed, double bound, bool met) {
  std::printf("  %-48s %.4f (by medians %.4f), %s %.2f%s\n", name, ratio.least, ratio.median, allowed, bound,
              bench::mark(met));
}

/// Operations of a block's forward, as flops_profiler counts them: two a multiply-add of its four square matrices, of
/// the two of its MLP, and of the scores and the sums of attention. Backward has twice as many.
double flops(const Size& size, std::int64_t tokens) {
  const auto t = static_cast<double>(tokens), d = static_cast<double>(size.width);
  return 24 * t * d * d + 4 * t * t * d;
}

/// Whether the bounds are met.
bool report(const Size& size, const std::vector<Times>& rounds) {
  const Ratio gathering(rounds, [](auto&& of) { return of(&Times::gathering) / of(&Times::kept_layers); });
  const Ratio saving(rounds, [](auto&& of) {
    return (of(&Times::plain) - of(&Times::with_plugin)) / (of(&Times::plain) - of(&Times::without_gathering));
  });
  const Ratio share(rounds, [](auto&& of) { return 1 - of(&Times::with_plugin) / of(&Times::plain); });
  std::printf("%lld tokens, %lld kept in %lld of %lld layers: %.1f %% of the time saved\n",
              static_cast<long long>(size.tokens), static_cast<long long>(size.keep()),
              static_cast<long long>(size.wrapped()), static_cast<long long>(size.layers), 100 * share.least);
  const double in_flops = static_cast<double>(size.wrapped()) / static_cast<double>(size.layers) *
                          (1 - flops(size, size.keep()) / flops(size, size.tokens));
  const Ratio of_flops(rounds, [&](auto&& of) { return (1 - of(&Times::with_plugin) / of(&Times::plain)) / in_flops; });
  const bool cheap = gathering.least <= kMostForGathering, saves = saving.least >= kLeastOfSaving,
             saves_flops = of_flops.least >= kLeastOfSaving;
  print("gathering and scattering, of the layers' time", gathering, "at most", kMostForGathering, cheap);
  print("saving, of that without gathering", saving, "at least", kLeastOfSaving, saves);
  print("saving, of that in operations", of_flops, "at least", kLeastOfSaving, saves_flops);
  std::fflush(stdout);
  return cheap && saves && saves_flops;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const int rounds = argc > 1 + is_short ? std::atoi(argv[1 + is_short]) : is_short ? 2 : 25;
  at::set_num_threads(1);
  if (is_short) {
    measure({4, 64, 4, 32}, rounds);
    return 0;
  }
  bool met = true;
  for (const std::int64_t tokens : {512, 1024}) {
    const Size size{12, 768, 12, tokens};
    met &= report(size, measure(size, rounds));
  }
  return bench::exit_code(met);
}
