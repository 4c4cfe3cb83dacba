#include "core/run/run_checks.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/config/rules/run_keys.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan {

void check_run(const Config& config, bool brings_eval_data) {
  const RunConfig& run = config.run;
  if (!config.optimizer) {
    throw ConfigError(
        "optimizer: not given. Add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}} to the file.");
  }
  if (!run.steps) {
    throw ConfigError("capstan.run.steps: not given. Add \"capstan\": {\"run\": {\"steps\": 200}} to the file.");
  }
  const bool evaluates = brings_eval_data || !run.eval_data_paths.empty();
  std::string idle;
  for (const IdleRunKey& one : idle_run_keys(run, evaluates)) {
    idle += (idle.empty() ? "" : "\n") + std::string(one.key) + ": " + one.why;
  }
  if (!idle.empty()) throw ConfigError(idle);
}

void check_passes(const Config& config, std::int64_t samples) {
  const DataEfficiencyConfig& section = config.data_efficiency;
  if (!section.enabled || !section.data_sampling.enabled) return;
  const std::int64_t batch = config.batch.train_batch_size;
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t passes = std::min(section.data_sampling.num_epochs, kMost / samples);
  const std::int64_t most = passes * samples / batch;
  if (*config.run.steps <= most) return;
  throw ConfigError("data_efficiency.data_sampling.num_epochs: " + grouped(section.data_sampling.num_epochs) +
                    " passes over " + grouped(samples) + " samples are " + grouped(most) + " steps of " +
                    grouped(batch) + " samples, and capstan.run.steps is " + grouped(*config.run.steps) +
                    ". Allow more passes, or take fewer steps.");
}

}  // namespace capstan
