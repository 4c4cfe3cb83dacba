// What sparse attention saves of a step of gpt: user CPU time of a step with it and without, in turns, on one thread,
// against what attention alone takes of the dense step.
//
//   sparse_attention_step [--short] [ROUNDS]     default: 5; 8,192 tokens, d 256, 4 layers
//
// Exits with 1 where less than 0.8 x (1 - density) x attention's share is saved. --short: a small model, whose figures
// say nothing.

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "bench/bound.hpp"
#include "core/attention/block_layout.hpp"
#include "core/config/component_params.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/registry/host.hpp"

namespace {

using namespace capstan;

constexpr std::int64_t kLayers = 4, kHeads = 4;
constexpr double kLeast = 0.8;

double user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

struct Shape {
  std::int64_t tokens, width;
};

Config config_of(const std::string& section, Shape shape, PluginIndex& plugins) {
  return load_config({R"({"train_batch_size": 1, "gradient_clipping": 0, "steps_per_print": null, )" + section +
                          R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
           "capstan": {"model": {"type": "gpt", "params": {"layers": )" +
                          std::to_string(kLayers) + R"(, "heads": )" + std::to_string(kHeads) + R"(, "d": )" +
                          std::to_string(shape.width) + R"(, "seq": )" + std::to_string(shape.tokens) + "}}}}",
                      "bench", false},
                     {}, plugins);
}

std::unique_ptr<Engine> engine_of(const Config& config, const PluginIndex& plugins) {
  Registry registry(plugins);
  const ComponentChoice& model = *config.run.model;
  return std::make_unique<Engine>(
      Model(registry.create(model.where, model.kind, model.type, model.params, model_host())), config, plugins);
}

double density_of(const Config& config, const PluginIndex& plugins, Shape shape) {
  Registry registry(plugins);
  const capstan_host host = make_host();
  const ComponentChoice& choice = *config.attention;
  const Component component =
      registry.create(choice.where, choice.kind, choice.type, component_params(choice, config, plugins), &host);
  BlockLayout layout = make_layout(component, choice.where, kHeads, shape.tokens, true, config.run.seed);
  layout.drop_later();
  return layout.density();
}

double step(Engine& engine, const at::Tensor& tokens) {
  const double begun = user_seconds();
  engine.train_batch([&] {
    Batch batch;
    batch.tensors.emplace("input_ids", tokens);
    batch.tensors.emplace("labels", tokens);
    return batch;
  });
  return user_seconds() - begun;
}

/// Forward and backward of all layers' dense attention alone.
double attention(Shape shape) {
  const at::Tensor all =
      at::rand({1, shape.tokens, 3, kHeads, shape.width / kHeads}).permute({2, 0, 3, 1, 4}).requires_grad_(true);
  const double begun = user_seconds();
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const at::Tensor out = at::scaled_dot_product_attention(all[0], all[1], all[2], {}, 0.0, true);
    torch::autograd::grad({out}, {all}, {out.detach()});
  }
  return user_seconds() - begun;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const int rounds = argc > 1 + is_short ? std::atoi(argv[1 + is_short]) : is_short ? 1 : 5;
  const Shape shape = is_short ? Shape{1024, 64} : Shape{8192, 256};
  at::set_num_threads(1);
  const at::Tensor tokens = at::randint(256, {1, shape.tokens}, at::kLong);

  bool met = true;
  PluginIndex plugins;
  const std::unique_ptr<Engine> dense = engine_of(config_of("", shape, plugins), plugins);
  for (const char* members :
       {R"("mode": "fixed", "num_local_blocks": 4)", R"("mode": "bslongformer", "num_sliding_window_blocks": 9)",
        R"("mode": "bigbird", "num_random_blocks": 1)"}) {
    const Config config =
        config_of(R"("sparse_attention": {"block": 64, "attention": "unidirectional", )" + std::string(members) + "}, ",
                  shape, plugins);
    const std::unique_ptr<Engine> sparse = engine_of(config, plugins);
    double with = 1e9, without = 1e9, alone = 1e9;
    for (int round = -1; round < rounds; ++round) {  // the first pays for memory
      const double of_sparse = step(*sparse, tokens), of_dense = step(*dense, tokens), of_attention = attention(shape);
      if (round < 0) continue;
      with = std::min(with, of_sparse), without = std::min(without, of_dense), alone = std::min(alone, of_attention);
    }
    const double density = density_of(config, plugins, shape), share = alone / without, saved = 1 - with / without;
    const double most = (1 - density) * share;
    const bool enough = is_short || saved >= kLeast * most;
    std::printf(
        "{%s}: density %.3f; a step takes %.2f s of CPU, %.2f s without, %.2f of which is attention: %.3f saved, "
        "%.2f of what there is (%.1f)%s\n",
        members, density, with, without, share, saved, saved / most, kLeast, bench::mark(enough));
    std::fflush(stdout);
    met &= enough;
  }
  return bench::exit_code(met);
}
