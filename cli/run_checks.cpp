#include "cli/run_checks.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cli/numbers.hpp"
#include "core/errors.hpp"

namespace capstan::cli {

void check_run(const RunConfig& run) {
  const auto needs = [](bool used, bool there, const char* key, const char* other) {
    if (used && !there) throw ConfigError(std::string(key) + ": has no effect without " + other + ".");
  };
  needs(run.save_every > 0, !run.save_dir.empty(), "capstan.run.save_every", "capstan.run.save_dir (--save)");
  needs(run.keep > 0, !run.save_dir.empty(), "capstan.run.keep", "capstan.run.save_dir (--save)");
  needs(run.overwrite, !run.save_dir.empty(), "capstan.run.overwrite", "capstan.run.save_dir (--save)");
  needs(run.keep_best, !run.save_dir.empty(), "capstan.run.keep_best", "capstan.run.save_dir (--save)");
  const std::pair<bool, const char*> evaluating[] = {{run.eval_every > 0, "capstan.run.eval_every"},
                                                     {run.keep_best, "capstan.run.keep_best"},
                                                     {run.patience > 0, "capstan.run.patience"}};
  for (const auto& [used, key] : evaluating) {
    needs(used, !run.eval_data_paths.empty(), key, "capstan.data.eval_path (--eval-data)");
    needs(used, run.eval_every > 0, key, "capstan.run.eval_every (--eval-every)");
  }
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

}  // namespace capstan::cli
