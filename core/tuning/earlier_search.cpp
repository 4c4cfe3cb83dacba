#include "core/tuning/earlier_search.hpp"

#include <set>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

using Names = std::set<std::string, std::less<>>;

const Names kOfSearch = {
    "ds_config_optimal.json", "cmd_optimal.txt", "summary.txt", "tuning.json", "tuner.json", "report.html"};
const Names kOfTrial = {"exp.json",   "ds_config.json", "cmd.txt",      "stdout.log",  "stderr.log",
                        kMetricsFile, kOutcomeFile,     "profile.json", "profile.txt", "model_info.json"};

/// The name that a file gets once it is whole.
std::string whole_name(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::size_t part = name.rfind(".part");
  const bool is_part =
      part != std::string::npos && name.find_first_not_of("-0123456789", part + 5) == std::string::npos;
  return is_part ? name.substr(0, part) : name;
}

bool is_plain_file(const fs::directory_entry& entry) { return entry.symlink_status().type() == fs::file_type::regular; }

/// Whether a file describes the experiment of that name.
bool describes(const fs::path& file, const std::string& experiment) {
  const std::optional<Json> json = read_json(file);
  const Json* name = json ? json->find("name") : nullptr;
  const Json* document = json ? json->find("ds_config") : nullptr;
  return name && *name == Json(experiment) && document && document->is_object();
}

/// The first entry of a trial's folder that no trial writes; the folder itself where it is not one. Empty: it is one.
fs::path stranger_in_trial(const fs::path& folder) {
  bool empty = true;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_plain_file(entry) || !kOfTrial.contains(whole_name(entry.path()))) return entry.path();
    empty = false;
  }
  return empty || describes(folder / "exp.json", folder.filename().string()) ? fs::path() : folder;
}

fs::path stranger_in_results(const fs::directory_entry& entry) {
  if (entry.symlink_status().type() == fs::file_type::directory) return stranger_in_trial(entry.path());
  return is_plain_file(entry) && kOfSearch.contains(whole_name(entry.path())) ? fs::path() : entry.path();
}

fs::path stranger_in_experiments(const fs::directory_entry& entry) {
  const std::string name = whole_name(entry.path());
  const bool is_one = is_plain_file(entry) && name.ends_with(".json") &&
                      (name != entry.path().filename() || describes(entry.path(), entry.path().stem().string()));
  return is_one ? fs::path() : entry.path();
}

[[noreturn]] void refuse(const fs::path& stranger, const char* key, const fs::path& folder) {
  throw ConfigError("autotuning.overwrite: would delete all that " + std::string(key) + ", '" + folder.string() +
                    "', holds, and '" + stranger.string() +
                    "' is not of an earlier search. Nothing was deleted. Move it away, or name a folder for the "
                    "search alone in " +
                    key + ".");
}

}  // namespace

void remove_earlier_search(const fs::path& results, const fs::path& experiments, const fs::path& lock, bool had_lock) {
  std::error_code error;
  const bool one_folder = fs::equivalent(results, experiments, error);
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(results)) {
    if (entry.path() == lock) continue;
    fs::path stranger = had_lock ? stranger_in_results(entry) : entry.path();
    if (!stranger.empty() && had_lock && one_folder) stranger = stranger_in_experiments(entry);
    if (!stranger.empty()) refuse(stranger, "autotuning.results_dir", results);
    doomed.push_back(entry.path());
  }
  if (!one_folder && fs::is_directory(experiments, error)) {
    for (const auto& entry : fs::directory_iterator(experiments)) {
      const fs::path stranger = stranger_in_experiments(entry);
      if (!stranger.empty()) refuse(stranger, "autotuning.exps_dir", experiments);
      doomed.push_back(entry.path());
    }
  }
  for (const fs::path& entry : doomed) {
    fs::remove_all(entry, error);
    if (error) throw RuntimeFault(entry.string() + ": cannot be deleted: " + error.message() + ".");
  }
}

}  // namespace capstan
