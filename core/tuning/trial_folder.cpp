#include "core/tuning/trial_folder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>

#include "core/errors.hpp"
#include "core/output_path.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestSentence = 300;
/// What only repeats that another process of the trial has failed.
constexpr std::array<const char*, 3> kEchoes = {"the others are ended", "ended with exit code", "was killed by signal"};
constexpr std::array<const char*, 4> kMemoryWords = {"out of memory", "bad_alloc", "DefaultCPUAllocator",
                                                     "Cannot allocate memory"};

bool has_any(const std::string& text, const auto& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != std::string::npos; });
}

std::string shortened(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.size() > kLongestSentence) text = text.substr(0, kLongestSentence) + "...";
  return text;
}

double number_of(const Json& json, const char* name) {
  const Json* value = json.find(name);
  return value && value->is_number() ? value->as_number() : std::nan("");
}

TrialOutcome with(std::string outcome, std::string reason) {
  TrialOutcome made;
  made.outcome = std::move(outcome);
  made.reason = std::move(reason);
  return made;
}

/// "It failed" without a reason helps nobody: what it wrote last, else how it ended.
TrialOutcome failed(const TrialResult& result, const fs::path& err) {
  const std::string sentence = failure_sentence(err);
  if (has_any(sentence, kMemoryWords)) return with("out of memory", sentence);
  // A launcher says of the process that it started what a shell would.
  const int signal = result.signal != 0 ? result.signal : result.exit_code > 128 ? result.exit_code - 128 : 0;
  if (signal == SIGKILL) {
    return with("out of memory", "a process was killed (signal 9), as the kernel does where memory runs out.");
  }
  if (signal != 0 && signal < NSIG) {
    return with("failed", std::string("was ended by signal ") + std::to_string(signal) + ", " + strsignal(signal) +
                              (sentence.empty() ? "." : ": " + sentence));
  }
  const std::string code = "ended with exit code " + std::to_string(result.exit_code);
  return with("failed", sentence.empty() ? code + " and wrote nothing about it." : sentence);
}

TrialOutcome measured(const fs::path& folder) {
  const std::optional<Json> metrics = read_json(folder / kMetricsFile);
  if (!metrics) return with("failed", std::string("its ") + kMetricsFile + " cannot be read.");
  TrialOutcome made = with("ok", "");
  made.latency = number_of(*metrics, "latency") / 1e6;
  made.throughput = number_of(*metrics, "throughput");
  if (!(made.latency > 0) || !(made.throughput > 0) || !std::isfinite(made.latency) ||
      !std::isfinite(made.throughput)) {
    return with("failed",
                std::string("its ") + kMetricsFile + " has a latency or a throughput that is no number above 0.");
  }
  if (const double peak = number_of(*metrics, "peak_memory"); peak > 0) {
    made.peak_bytes = static_cast<std::int64_t>(peak);
  }
  if (const double flops = number_of(*metrics, "FLOPS_per_gpu"); flops > 0) made.flops = flops;
  return made;
}

}  // namespace

std::string failure_sentence(const fs::path& err) {
  std::ifstream in(err);
  std::string last, said, memory;
  constexpr const char* kOurs = "capstan: error: ";
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (!has_any(line, kEchoes)) last = line;
    if (memory.empty() && has_any(line, kMemoryWords)) memory = line;
    if (said.empty() && line.find(kOurs) != std::string::npos && !has_any(line, kEchoes)) {
      said = line.substr(line.find(kOurs) + std::strlen(kOurs));
    }
  }
  return shortened(!said.empty() ? said : !memory.empty() ? memory : last);
}

TrialOutcome judge_trial(const TrialResult& result, const fs::path& folder, const TrialCommand& command) {
  TrialOutcome made;
  switch (result.end) {
    case TrialEnd::kMeasured:
      made = measured(folder);
      break;
    case TrialEnd::kEnded:
      made = result.exit_code == 0 && result.signal == 0
                 ? with("failed",
                        "ended without measuring: no step after end_profile_step, or a program that does not "
                        "train by the configuration that it is given.")
                 : failed(result, command.err);
      break;
    case TrialEnd::kTimedOut:
      made =
          with("timed out",
               "did not end within " +
                   std::to_string(std::chrono::duration_cast<std::chrono::seconds>(command.time_out).count()) + " s.");
      break;
    case TrialEnd::kOutOfMemory:
      made = with("out of memory", "a process had " + bytes_text(result.peak_bytes) + ", and the limit is " +
                                       bytes_text(command.process_bytes) + ".");
      break;
    case TrialEnd::kTooMuchOutput:
      made = with("failed", "wrote more than " + bytes_text(command.output_bytes) + " of output.");
      break;
    case TrialEnd::kDiskFull:
      made = with("failed", "left less than " + bytes_text(command.spare_disk_bytes) + " free on the disk of " +
                                folder.string() + ".");
      break;
    case TrialEnd::kInterrupted:
      made = with("interrupted", "was interrupted.");
      break;
    case TrialEnd::kStuck:
      made = with("failed", "left a process that could not be ended.");
      break;
  }
  made.peak_bytes = std::max(made.peak_bytes, result.peak_bytes);
  made.seconds = result.seconds;
  return made;
}

std::optional<TrialOutcome> read_outcome(const fs::path& folder) {
  const std::optional<Json> json = read_json(folder / kOutcomeFile);
  if (!json || !json->is_object()) return std::nullopt;
  const Json* outcome = json->find("outcome");
  const Json* reason = json->find("reason");
  if (!outcome || !outcome->is_string() || outcome->as_string() == "interrupted") return std::nullopt;
  TrialOutcome made = with(outcome->as_string(), reason && reason->is_string() ? reason->as_string() : "");
  const auto number = [&](const char* name) {
    const double value = number_of(*json, name);
    return std::isnan(value) ? 0 : value;
  };
  made.latency = number("latency_seconds");
  made.throughput = number("throughput");
  made.flops = number("FLOPS_per_gpu");
  made.peak_bytes = static_cast<std::int64_t>(number("peak_memory"));
  made.seconds = number("seconds");
  if (made.ok() && !(made.latency > 0)) return std::nullopt;
  return made;
}

void write_outcome(const fs::path& folder, const TrialOutcome& outcome) {
  Json json = Json::object();
  json["outcome"] = outcome.outcome;
  if (!outcome.reason.empty()) json["reason"] = outcome.reason;
  if (outcome.ok()) {
    json["latency_seconds"] = outcome.latency;
    json["throughput"] = outcome.throughput;
    if (outcome.flops > 0) json["FLOPS_per_gpu"] = outcome.flops;
  }
  json["peak_memory"] = outcome.peak_bytes;
  json["seconds"] = outcome.seconds;
  replace_file(folder / kOutcomeFile, json.dump(2) + "\n");
}

std::optional<Json> read_json(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  try {
    return Json::parse(std::string{std::istreambuf_iterator<char>(in), {}});
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

std::vector<std::string> grouped_failures(const std::vector<std::pair<std::string, TrialOutcome>>& trials) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> groups;
  for (const auto& [name, trial] : trials) {
    if (!trial.ok()) groups[{trial.outcome, trial.reason}].push_back(name);
  }
  std::vector<std::pair<std::size_t, std::string>> lines;
  for (const auto& [why, names] : groups) {
    const std::string count = std::to_string(names.size()) + (names.size() == 1 ? " trial " : " trials ");
    const std::string verb = why.first == "out of memory" ? "ran out of memory" : why.first;
    lines.emplace_back(names.size(),
                       count + verb + " (" + names.front() + (names.size() > 1 ? ", ..." : "") + "): " + why.second);
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> out;
  for (auto& [count, line] : lines) out.push_back(std::move(line));
  return out;
}

}  // namespace capstan
