// What pruning computes: the k largest of a million values, beside a sort and a kthvalue of them; and evaluation of a
// gpt whose rows and heads were removed by half, beside the same with masks. Both take turns on one thread; CPU time of
// that thread. Prints medians and bounds.
//
//   pruning_kernels [--short]
//
// Exits with 1 where a bound is missed. --short: a small model and few values, whose figures say nothing.

#include <ATen/Parallel.h>
#include <ATen/ops/kthvalue.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "core/compression/select_largest.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"

namespace {

using namespace capstan;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& work) {
  const double begun = thread_seconds();
  work();
  return thread_seconds() - begun;
}

bool selection(bool is_short) {
  constexpr double kBound = 6.5;  // nanoseconds a value
  const std::int64_t count = is_short ? 100'000 : 1'000'000, ties = count / 100;
  at::Tensor values = at::randn({count});
  values.narrow(0, 0, ties).fill_(0.25);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(count));
  std::vector<double> ours, sorts, kths;
  for (int round = 0; round < (is_short ? 2 : 15); ++round) {
    ours.push_back(seconds_of([&] {
      select_largest({{values.const_data_ptr<float>(), count, 0, mask.data()}},
                     {static_cast<std::uint64_t>(count * 2 / 5)}, nullptr, "bench");
    }));
    sorts.push_back(seconds_of([&] { at::sort(values); }));
    kths.push_back(seconds_of([&] { at::kthvalue(values, count * 3 / 5); }));
  }
  const double each = 1e9 / static_cast<double>(count), ns = median(ours) * each;
  const bool met = ns <= kBound;
  std::printf(
      "the largest of %lld values, and their mask: %.2f ns a value (sort %.1f, kthvalue %.1f), allowed %.1f%s\n",
      static_cast<long long>(count), ns, median(sorts) * each, median(kths) * each, kBound, bench::mark(met));
  return met || is_short;
}

std::unique_ptr<Engine> gpt(const std::string& compressions, const std::string& shape, bool is_short) {
  static PluginIndex plugins;
  const Config config = load_config(
      {R"({"train_batch_size": 1, "gradient_clipping": 0, "steps_per_print": null, "compression_training": {)" +
           compressions + R"(}, "capstan": {"model": {"type": "gpt", "params": {"layers": )" +
           (is_short ? R"(2, "heads": 4, "d": 64)" : R"(12, "heads": 12, "d": 768)") + R"(, "seq": 256)" + shape +
           "}}}}",
       "bench", false},
      {}, plugins);
  Registry registry(plugins);
  const ComponentChoice& model = *config.run.model;
  return std::make_unique<Engine>(
      Model(registry.create(model.where, model.kind, model.type, model.params, model_host())), config, plugins);
}

bool evaluation(bool is_short) {
  constexpr double kBound = 1.6;
  const std::string heads = is_short ? "4" : "12";
  const std::string masks =
      R"("row_pruning": {"shared_parameters": {"enabled": true, "method": "l1"}, "different_groups": {"r": {
        "params": {"dense_ratio": 0.5}, "modules": ["mlp.fc"]}}}, "head_pruning": {"shared_parameters": {"enabled": true,
        "num_heads": )" +
      heads + R"(}, "different_groups": {"h": {"params": {"dense_ratio": 0.5}, "modules": ["attn.proj"]}}})";
  const auto masked = gpt(masks, "", is_short);
  const auto small =
      gpt("", is_short ? R"(, "ff": [128], "kept_heads": [2])" : R"(, "ff": [1536], "kept_heads": [6])", is_short);
  const at::Tensor tokens = at::randint(256, {1, 256}, at::kLong);
  const auto run = [&](Engine& engine) {
    return seconds_of([&] {
      engine.eval_batch(
          [&] {
            Batch batch;
            batch.tensors = {{"input_ids", tokens}, {"labels", tokens}};
            return batch;
          },
          1);
    });
  };
  std::vector<double> ratios;
  for (int round = -1; round < (is_short ? 1 : 9); ++round) {  // the first pays for memory
    const double whole = run(*masked), removed = run(*small);
    if (round >= 0) ratios.push_back(whole / removed);
  }
  const bool met = median(ratios) >= kBound;
  std::printf("evaluation with half of the rows and heads removed: %.2f times as fast as masked, at least %.1f%s\n",
              median(ratios), kBound, bench::mark(met));
  return met || is_short;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  at::set_num_threads(1);
  const bool selected = selection(is_short), evaluated = evaluation(is_short);
  return bench::exit_code(selected && evaluated);
}
