#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "core/tuning/trial_process.hpp"

namespace capstan {

/// What became of a trial: outcome.json in its folder.
struct TrialOutcome {
  std::string outcome;          // "ok", "out of memory", "failed", "timed out", "interrupted"
  std::string reason;           // one sentence; empty when it is ok
  double latency = 0;           // seconds a step
  double throughput = 0;        // samples a second
  double flops = 0;             // of a device, a second; 0: not measured
  std::int64_t peak_bytes = 0;  // of the process that had most
  double seconds = 0;           // that the trial took

  bool ok() const { return outcome == "ok"; }
};

/// Files of a trial in its folder.
inline constexpr const char* kMetricsFile = "metrics.json";
inline constexpr const char* kOutcomeFile = "outcome.json";
inline constexpr const char* kProfileFile = "profile.json";

/// Reads what the trial left in `folder` and says what became of it. A trial that ends well without its metrics, or
/// with one that is no number above 0, has failed. `process_bytes`, `time_out`: for the reason.
TrialOutcome judge_trial(const TrialResult& result, const std::filesystem::path& folder, const TrialCommand& command);

/// The sentence of a trial's error output that says why it failed; empty when it wrote nothing.
std::string failure_sentence(const std::filesystem::path& err);

/// None where the folder has no outcome, or that of a trial that was interrupted.
std::optional<TrialOutcome> read_outcome(const std::filesystem::path& folder);
void write_outcome(const std::filesystem::path& folder, const TrialOutcome& outcome);

/// The file as JSON; none where it is not there, or is no JSON.
std::optional<Json> read_json(const std::filesystem::path& file);

/// Outcomes that are not ok, those of one reason together: "3 trials ran out of memory: ...", the most frequent first.
std::vector<std::string> grouped_failures(const std::vector<std::pair<std::string, TrialOutcome>>& trials);

}  // namespace capstan
