#include "cli/tune/tune_trials.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/output_path.hpp"
#include "core/tuning/earlier_search.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// What a trial may take at least, and how many times the longest one.
constexpr double kLeastSeconds = 60, kTimes = 20;
/// How long the keeper of a search that was killed may take to end its trial.
constexpr std::chrono::seconds kKeeperEnds{20};

void create_folder(const fs::path& folder, const char* key) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) {
    throw RuntimeFault(folder.string() + ": cannot be written: " + error.message() + ". Name another folder in " + key +
                       ".");
  }
}

/// The floating-point operations of all forwards of the step that a trial profiled, on one device; 0: it did not.
double profiled_operations(const fs::path& file) {
  const std::optional<Json> profile = read_json(file);
  const Json* forward = profile ? profile->find("forward") : nullptr;
  if (forward == nullptr) return 0;
  double sum = 0;
  if (!forward->is_object()) return 0;
  for (const auto& [name, calls] : forward->as_object()) {
    const Json* work = calls.find("work");
    const Json* flops = work ? work->find("flops") : nullptr;
    if (flops && flops->is_number()) sum += flops->as_number();
  }
  return sum;
}

}  // namespace

TuneTrials::TuneTrials(const TuneSetup& setup, std::int64_t time_out_seconds, std::function<bool()> stop)
    : setup_(setup),
      time_out_(time_out_seconds),
      stop_(std::move(stop)),
      results_(fs::absolute(setup.tuning().results_dir)),
      experiments_(fs::absolute(setup.tuning().exps_dir)) {
  create_folder(results_, "autotuning.results_dir");
  const fs::path file = results_ / ".lock";
  std::error_code error;
  const bool had_lock = fs::is_regular_file(file, error);
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) throw RuntimeFault(file.string() + ": cannot be written: " + std::strerror(errno) + ".");
  take_lock();
  if (setup.tuning().overwrite) remove_earlier(file, had_lock);
  create_folder(experiments_, "autotuning.exps_dir");
}

void TuneTrials::remove_earlier(const fs::path& lock, bool had_lock) const {
  try {
    remove_earlier_search(results_, experiments_, lock, had_lock);
  } catch (const ConfigError&) {
    // The lock tells that a search has worked here.
    std::error_code ignored;
    if (!had_lock) fs::remove(lock, ignored);
    throw;
  }
}

/// The keeper of a trial holds the lock too: where a search was killed, it lives on for a moment to end the trial.
void TuneTrials::take_lock() {
  const auto until = std::chrono::steady_clock::now() + kKeeperEnds;
  while (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    char text[32] = {};
    const auto holder = ::pread(lock_, text, sizeof text - 1, 0) > 0 ? static_cast<pid_t>(std::atoi(text)) : 0;
    const bool lives = holder > 0 && ::kill(holder, 0) == 0;
    if (lives || std::chrono::steady_clock::now() > until) {
      ::close(std::exchange(lock_, -1));
      throw RuntimeFault(results_.string() +
                         ": another 'capstan tune' works in this folder. Wait for it, or name another "
                         "folder in autotuning.results_dir.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string own = std::to_string(::getpid()) + "\n";
  (void)!::ftruncate(lock_, 0);
  (void)!::pwrite(lock_, own.data(), own.size(), 0);
}

TuneTrials::~TuneTrials() {
  if (lock_ >= 0) ::close(lock_);
}

TrialCommand TuneTrials::command(const fs::path& folder, const Json& document) const {
  TrialCommand command;
  command.words = command_words(setup_, (folder / "ds_config.json").string(), document);
  command.out = folder / "stdout.log";
  command.err = folder / "stderr.log";
  command.measured = folder / kMetricsFile;
  command.process_bytes = setup_.config.device == "cpu" ? limit_ : 0;
  const double seconds = time_out_ > 0 ? static_cast<double>(time_out_) : std::max(kLeastSeconds, kTimes * longest_);
  command.time_out = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
  return command;
}

void TuneTrials::prepare(const std::string& name, const fs::path& folder, const Json& document) {
  create_folder(folder, "autotuning.results_dir");
  std::error_code ignored;
  for (const char* file : {kMetricsFile, kOutcomeFile, kProfileFile, "model_info.json"})
    fs::remove(folder / file, ignored);
  Json experiment = Json::object();
  experiment["name"] = name;
  experiment["ds_config"] = document;
  experiment["num_gpus"] = setup_.processes;
  experiment["num_nodes"] = 1;
  experiment["hostfile"] = "";
  // First of all: by it a later search knows the folder for a trial's.
  replace_file(folder / "exp.json", experiment.dump(2) + "\n");
  replace_file(folder / "ds_config.json", document.dump(2) + "\n");
  replace_file(experiments_ / (folder.filename().string() + ".json"), experiment.dump(2) + "\n");
  replace_file(folder / "cmd.txt", shell_text(command(folder, document).words) + "\n");
}

TrialOutcome TuneTrials::execute(const std::string& name, const fs::path& folder, const Json& document) {
  prepare(name, folder, document);
  const TrialCommand trial = command(folder, document);
  const TrialResult result = run_trial(trial, stop_);
  TrialOutcome outcome = judge_trial(result, folder, trial);
  if (const double operations = profiled_operations(folder / kProfileFile); outcome.ok() && operations > 0) {
    // A backward counts as two forwards.
    outcome.flops = 3 * operations / outcome.latency;
    std::optional<Json> metrics = read_json(folder / kMetricsFile);
    (*metrics)["FLOPS_per_gpu"] = outcome.flops;
    replace_file(folder / kMetricsFile, metrics->dump(2) + "\n");
  }
  if (outcome.ok() && setup_.tuning().metric == "FLOPS" && outcome.flops <= 0) {
    outcome.outcome = "failed";
    outcome.reason = "it measured no FLOPS_per_gpu: no operation of a forward was profiled.";
  }
  if (outcome.ok()) longest_ = std::max(longest_, result.seconds);
  return outcome;
}

const TrialOutcome& TuneTrials::run(const TuningPoint& point, int run) {
  const std::string name = point.name + (run == 0 ? "" : "_run" + std::to_string(run + 1));
  if (const auto known = places_.find(name); known != places_.end()) return outcomes_[known->second].second;
  const fs::path folder = results_ / name;
  const Json document = trial_document(setup_, point, folder);
  std::optional<TrialOutcome> outcome = read_outcome(folder);
  const std::optional<Json> before = read_json(folder / "ds_config.json");
  if (outcome && before && *before == document) {
    if (outcome->ok()) longest_ = std::max(longest_, outcome->seconds);
  } else {
    outcome = execute(name, folder, document);
    write_outcome(folder, *outcome);
  }
  if (outcome->outcome != "interrupted") places_[name] = outcomes_.size();
  outcomes_.emplace_back(name, *outcome);
  return outcomes_.back().second;
}

Json TuneTrials::profile(std::int64_t micro_batch) {
  const std::string name =
      micro_batch == 1 ? "profile_model_info" : "profile_model_info_tmbspg" + std::to_string(micro_batch);
  const fs::path folder = results_ / name, file = folder / "model_info.json";
  const Json document = profile_document(setup_, micro_batch, folder);
  const std::optional<Json> before = read_json(folder / "ds_config.json");
  if (before && *before == document) {
    if (auto info = read_json(file)) return *info;
  }
  prepare(name, folder, document);
  TrialCommand trial = command(folder, document);
  trial.measured = file;
  const TrialResult result = run_trial(trial, stop_);
  if (auto info = read_json(file)) return *info;
  const TrialOutcome outcome = judge_trial(result, folder, trial);
  throw RuntimeFault(
      "the model cannot be profiled: " + (outcome.reason.empty() ? "no model_info.json." : outcome.reason) +
      "\n  Its command, configuration and output are in " + folder.string() + ".");
}

}  // namespace capstan::cli
