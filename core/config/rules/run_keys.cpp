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
  const SampleConfig& sample = run.sample;
  const SampleConfig usual;
  const bool samples = sample.every > 0, draws = sample.temperature > 0;
  constexpr const char *kSample = "capstan.run.sample_every (--sample-every)",
                       *kDraw = "a capstan.run.sample_temperature above 0";
  needs(!sample.prompts.empty(), samples, "capstan.run.sample_prompts", kSample);
  needs(!sample.prompts_file.empty(), samples, "capstan.run.sample_prompts_file", kSample);
  needs(sample.tokens != usual.tokens, samples, "capstan.run.sample_tokens", kSample);
  needs(sample.temperature != usual.temperature, samples, "capstan.run.sample_temperature", kSample);
  needs(sample.top_k != usual.top_k, samples, "capstan.run.sample_top_k", kSample);
  needs(sample.top_k != usual.top_k, draws, "capstan.run.sample_top_k", kDraw);
  needs(sample.top_p != usual.top_p, samples, "capstan.run.sample_top_p", kSample);
  needs(sample.top_p != usual.top_p, draws, "capstan.run.sample_top_p", kDraw);
  needs(!sample.tokenizer.empty(), samples, "capstan.run.sample_tokenizer", kSample);
  return idle;
}

}  // namespace capstan
