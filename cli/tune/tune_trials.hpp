#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/tune/tune_setup.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan::cli {

/// The folders of a search, held by one search at a time, and the trials in them.
class TuneTrials {
 public:
  /// Makes the folders, and with autotuning.overwrite empties them first. Throws RuntimeFault where they cannot be
  /// written, or another search holds them.
  TuneTrials(const TuneSetup& setup, std::int64_t time_out_seconds, std::function<bool()> stop);
  ~TuneTrials();
  TuneTrials(const TuneTrials&) = delete;

  /// Run number `run` of a point, 0 for the first. One that has an outcome of this very configuration is not run again.
  const TrialOutcome& run(const TuningPoint& point, int run = 0);
  /// model_info.json of a run that looks at the model. Throws RuntimeFault with its reason where there is none.
  Json profile(std::int64_t micro_batch);

  /// Every outcome by name, in the order of the trials.
  const std::vector<std::pair<std::string, TrialOutcome>>& outcomes() const { return outcomes_; }
  const std::filesystem::path& results() const { return results_; }
  /// Bytes that a process of a trial may take; 0: any.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }

 private:
  void take_lock();
  void remove_earlier(const std::filesystem::path& lock, bool had_lock) const;
  void prepare(const std::string& name, const std::filesystem::path& folder, const Json& document);
  TrialCommand command(const std::filesystem::path& folder, const Json& document) const;
  TrialOutcome execute(const std::string& name, const std::filesystem::path& folder, const Json& document);

  const TuneSetup& setup_;
  std::int64_t limit_ = 0, time_out_;
  std::function<bool()> stop_;
  std::filesystem::path results_, experiments_;
  int lock_ = -1;
  double longest_ = 0;  // seconds of a trial that has measured
  std::vector<std::pair<std::string, TrialOutcome>> outcomes_;
  std::map<std::string, std::size_t> places_;  // in `outcomes_`, by name
};

}  // namespace capstan::cli
