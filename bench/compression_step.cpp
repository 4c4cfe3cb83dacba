// What compressions cost a step: user CPU time of a step of gpt with each, against the plain steps before and after it,
// on one thread. Prints the medians of the ratios, their ranges and their bounds.
//
//   compression_step [--short] [ROUNDS]     default: 25
//
// Exits with 1 where a median is above its bound. --short: two rounds of a small model, whose figures say nothing.

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"

namespace {

using namespace capstan;

constexpr std::int64_t kRows = 4, kTokens = 128;  // 512 tokens a step: rounding weights takes a fixed time

struct Setting {
  const char* name;
  double bound;
  std::string section;
};

std::string weights(int bits, int groups) {
  const std::string number = std::to_string(bits);
  return R"("weight_quantization": {"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true,
    "schedule_offset": 0, "quantize_groups": )" +
         std::to_string(groups) + R"(}, "different_groups": {"all": {"modules": ["attn", "mlp"],
    "params": {"start_bits": )" +
         number + R"(, "target_bits": )" + number + "}}}}";
}

std::string activations(const char* calibration) {
  return R"("activation_quantization": {"shared_parameters": {"enabled": true, "schedule_offset": 0,
    "range_calibration": ")" +
         std::string(calibration) +
         R"("}, "different_groups": {"all": {"modules": ["attn", "mlp"], "params": {"bits": 8}}}})";
}

std::string pruning(const char* technique, const char* method, const char* modules) {
  return "\"" + std::string(technique) + R"(": {"shared_parameters": {"enabled": true, "method": ")" + method +
         R"("}, "different_groups": {"all": {"modules": [)" + modules + R"(], "params": {"dense_ratio": 0.5}}}})";
}

std::vector<Setting> settings() {
  return {{"weights of 8 bits", 1.03, weights(8, 1)},
          {"weights of 4 bits, 64 groups", 1.03, weights(4, 64)},
          {"activations of 8 bits, static", 1.15, activations("static")},
          {"activations of 8 bits, dynamic", 1.15, activations("dynamic")},
          {"fixed masks of weights", 1.03, pruning("sparse_pruning", "l1", R"("attn", "mlp")")},
          {"fixed masks of rows", 1.03, pruning("row_pruning", "l1", R"("mlp.fc")")},
          {"learned masks of weights", 1.15, pruning("sparse_pruning", "topk", R"("attn", "mlp")")},
          {"learned masks of rows", 1.15, pruning("row_pruning", "topk", R"("mlp.fc")")}};
}

double user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

std::unique_ptr<Engine> engine_of(const std::string& section, bool is_short) {
  static PluginIndex plugins;
  const Config config = load_config({R"({"train_batch_size": )" + std::to_string(kRows) +
                                         R"(, "gradient_clipping": 0, "steps_per_print": null,
           "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "compression_training": {)" +
                                         section + R"(},
           "capstan": {"model": {"type": "gpt", "params": {"layers": 4, "heads": 8, "d": )" +
                                         (is_short ? "32" : "256") + R"(, "seq": )" + std::to_string(kTokens) + "}}}}",
                                     "bench", false},
                                    {}, plugins);
  Registry registry(plugins);
  const ComponentChoice& model = *config.run.model;
  return std::make_unique<Engine>(
      Model(registry.create(model.where, model.kind, model.type, model.params, model_host())), config, plugins);
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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

bool report(const Setting& setting, const std::vector<double>& ratios) {
  const double ratio = median(ratios);
  const bool met = ratio <= setting.bound;
  std::printf("%-31s %.3f of a plain step (%.2f to %.2f), allowed %.2f%s\n", setting.name, ratio,
              *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()),
              setting.bound, bench::mark(met));
  return met;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const int rounds = argc > 1 + is_short ? std::atoi(argv[1 + is_short]) : is_short ? 2 : 25;
  at::set_num_threads(1);
  const at::Tensor tokens = at::randint(256, {kRows, kTokens}, at::kLong);
  const std::vector<Setting> all = settings();
  std::vector<std::unique_ptr<Engine>> engines;
  for (const Setting& setting : all) engines.push_back(engine_of(setting.section, is_short));
  const std::unique_ptr<Engine> plain = engine_of("", is_short);
  std::vector<std::vector<double>> ratios(all.size());
  for (int round = -2; round < rounds; ++round) {  // the first pay for memory
    double before = step(*plain, tokens);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const double took = step(*engines[k], tokens), after = step(*plain, tokens);
      if (round >= 0) ratios[k].push_back(2 * took / (before + after));
      before = after;
    }
  }
  if (is_short) return 0;
  bool met = true;
  for (std::size_t k = 0; k < all.size(); ++k) met &= report(all[k], ratios[k]);
  return bench::exit_code(met);
}
