#include "cli/verify/verify_runs.hpp"

#include <chrono>

#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/stopping.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/config/config_document.hpp"
#include "core/errors.hpp"
#include "core/tuning/trial_folder.hpp"
#include "core/tuning/trial_process.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::minutes kLongestRun{30};
constexpr const char* kSteps = "capstan.run.steps";

fs::path request_in(const fs::path& folder) { return folder / "request.json"; }

}  // namespace

VerifyRuns::Result VerifyRuns::run(const VerifyVariant& variant, const fs::path& folder,
                                   const fs::path& reference) const {
  if (variant.saved_by == 0) return start(variant.processes, variant.settings, variant, {}, folder, reference);
  const std::string checkpoint = (folder / "checkpoint").string();
  const Result first =
      start(variant.saved_by, variant.saved_settings, variant, {.saved = checkpoint}, folder / "first", reference);
  if (first.end != End::kRecorded) return first;
  return start(variant.processes, variant.settings, variant, {.resumed = checkpoint}, folder, reference);
}

VerifyRuns::Result VerifyRuns::start(int processes, const Settings& settings, const VerifyVariant& variant,
                                     const Checkpoint& checkpoint, const fs::path& folder,
                                     const fs::path& reference) const {
  fs::create_directories(folder);
  TrialCommand command;
  if (processes > 1) {
    command.words = {(install_prefix() / "bin/capstan").string(), "launch", "-n", std::to_string(processes)};
  }
  std::vector<std::string> words = arguments_.program;
  if (words.empty()) {
    words = words_of(settings, checkpoint, folder);
    if (!variant.plugin_path.empty()) words.insert(words.end(), {"--plugin-path", variant.plugin_path});
    if (variant.second) words.emplace_back("--second");
    if (processes == 1) words.insert(words.begin(), (install_prefix() / "bin/capstan").string());
  } else {
    write_request(settings, variant, checkpoint, folder, reference);
    words.push_back(request_in(folder).string());
  }
  command.words.insert(command.words.end(), words.begin(), words.end());
  command.out = folder / "stdout.log";
  command.err = folder / "stderr.log";
  command.time_out = kLongestRun;
  const TrialResult result = run_trial(command, Stopping::requested);
  const bool ended = result.end == TrialEnd::kEnded && result.signal == 0;
  if (ended && result.exit_code == 0) return {};
  if (ended && result.exit_code == static_cast<int>(ExitCode::kConfig)) {
    return {End::kRefused, failure_sentence(command.err)};
  }
  return {End::kFailed, judge_trial(result, folder, command).reason};
}

std::vector<std::string> VerifyRuns::words_of(const Settings& settings, const Checkpoint& checkpoint,
                                              const fs::path& folder) const {
  std::vector<std::string> words = {"verify", "--record", folder.string(), "--steps", std::to_string(arguments_.steps)};
  if (!checkpoint.saved.empty()) {
    words.insert(words.end(), {"--save", checkpoint.saved, "--until", std::to_string(arguments_.steps / 2)});
  }
  if (!checkpoint.resumed.empty()) words.insert(words.end(), {"--resume", checkpoint.resumed});
  const ConfigArguments& config = arguments_.config;
  if (!config.file.empty()) words.insert(words.end(), {"--config", config.file});
  const std::vector<std::string> reading = reading_options(config);
  words.insert(words.end(), reading.begin(), reading.end());
  const auto set = [&](const std::string& key, const Json& value) {
    words.insert(words.end(), {"--set", key + "=" + value.dump()});
  };
  for (const auto& [key, value] : config.overrides) set(key, value);
  set(kSteps, std::int64_t{arguments_.steps});
  for (const auto& [key, value] : settings) set(key, value);
  return words;
}

/// Reads the configuration as the command has read it, so that no mistake is found here.
void VerifyRuns::write_request(const Settings& settings, const VerifyVariant& variant, const Checkpoint& checkpoint,
                               const fs::path& folder, const fs::path& reference) const {
  ConfigContext context = config_context(arguments_.config);
  context.overrides.emplace_back(kSteps, std::int64_t{arguments_.steps});
  context.overrides.insert(context.overrides.end(), settings.begin(), settings.end());
  Problems problems;
  const std::optional<Json> config = overridden_document(config_text(arguments_.config), context, problems);
  if (!config) throw RuntimeFault(arguments_.config.file + ": cannot be read any more.");
  Json request = Json::object();
  request["config"] = *config;
  request["record"] = folder.string();
  request["steps"] = std::int64_t{arguments_.steps};
  request["until"] = std::int64_t{checkpoint.saved.empty() ? arguments_.steps : arguments_.steps / 2};
  request["save"] = checkpoint.saved;
  request["resume"] = checkpoint.resumed;
  request["seed"] = static_cast<std::int64_t>(seed_);
  request["peer"] = variant.peer;
  request["second"] = variant.second;
  request["keep_batches"] = !arguments_.peers.empty();
  request["reference"] = reference.string();
  write_file(request_in(folder), request.dump() + "\n");
}

}  // namespace capstan::cli
