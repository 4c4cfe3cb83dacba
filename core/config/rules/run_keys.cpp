#include "core/config/rules/run_keys.hpp"

namespace capstan {

std::vector<IdleRunKey> idle_run_keys(const RunConfig& run, bool evaluates) {
  std::vector<IdleRunKey> idle;
  const auto needs = [&](bool used, bool met, const char* key, const char* other) {
    const bool seen = !idle.empty() && std::string(idle.back().key) == key;
    if (used && !met && !seen) idle.push_back({key, std::string("has no effect without ") + other + "."});
  };
  const bool saves = !run.save_dir.empty(), often = run.eval_every > 0;
  constexpr const char *kSave = "capstan.run.save_dir (--save)", *kData = "capstan.data.eval_path (--eval-data)",
                       *kOften = "capstan.run.eval_every (--eval-every)";
  needs(run.save_every > 0, saves, "capstan.run.save_every", kSave);
  needs(run.keep > 0, saves, "capstan.run.keep", kSave);
  needs(run.overwrite, saves, "capstan.run.overwrite", kSave);
  needs(often, evaluates, "capstan.run.eval_every", kData);
  needs(run.keep_best, saves, "capstan.run.keep_best", kSave);
  needs(run.keep_best, evaluates, "capstan.run.keep_best", kData);
  needs(run.keep_best, often, "capstan.run.keep_best", kOften);
  needs(run.patience > 0, evaluates, "capstan.run.patience", kData);
  needs(run.patience > 0, often, "capstan.run.patience", kOften);
  return idle;
}

}  // namespace capstan
