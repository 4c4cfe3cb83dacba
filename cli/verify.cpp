#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/numbers.hpp"
#include "cli/program.hpp"
#include "cli/stopping.hpp"
#include "cli/usage_error.hpp"
#include "cli/verify_compare.hpp"
#include "cli/verify_record.hpp"
#include "cli/verify_variants.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/tuning/trial_folder.hpp"
#include "core/tuning/trial_process.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::minutes kLongestRun{30};

/// A folder of its own, gone with the object.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "capstan-verify-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw RuntimeFault(pattern + ": cannot be made: " + std::strerror(errno) +
                         ". Name a folder that can be written in TMPDIR.");
    }
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

enum class Verdict { kKept, kBroken, kNotThere, kFailed };

struct Row {
  std::string name, loss, gradients, weights, remark;
  Verdict verdict = Verdict::kKept;
};

class Verification {
 public:
  explicit Verification(const VerifyArguments& arguments) : arguments_(arguments) {
    ConfigContext context = config_context(arguments.config);
    context.overrides.emplace_back("capstan.run.steps", std::int64_t{arguments.steps});
    context.world_size = 1;
    context.trains_alone = true;
    context.takes_steps = false;  // a few steps say nothing about a schedule
    PluginIndex plugins;
    const Config config = load_config(config_text(arguments.config), context, plugins);
    variants_ = verify_variants(config, arguments.world, scratch_.path() / "store");
    fs::create_directories(scratch_.path() / "store");
  }

  int run() {
    const Stopping stopping;
    if (!arguments_.json) print(line_of({"variant", "loss", "gradients", "weights", ""}) + "\n");
    for (const VerifyVariant& variant : variants_) {
      if (!is_asked_for(variant)) continue;
      const Row row = row_of(variant);
      if (Stopping::requested()) {
        log::info("interrupted after " + counted(static_cast<std::int64_t>(rows_.size()), "variant") + " of " +
                  std::to_string(variants_.size()) + ".");
        return static_cast<int>(ExitCode::kInterrupted);
      }
      rows_.push_back(row);
      if (!arguments_.json) print(line_of(row) + "\n");
      if (&variant == &variants_.front() && row.verdict != Verdict::kKept) {
        if (arguments_.json) print(json().dump(2) + "\n");
        return row.verdict == Verdict::kNotThere ? static_cast<int>(ExitCode::kConfig) : 1;
      }
      if (&variant == &variants_.front() + 1 && row.verdict == Verdict::kBroken) {
        log::error(
            "two equal runs differ, so that no comparison tells anything. Give the model's random numbers to "
            "LibTorch's generators, which the engine seeds.");
        break;
      }
    }
    if (arguments_.json) print(json().dump(2) + "\n");
    return kept() ? 0 : 1;
  }

 private:
  /// References of what is asked for are asked for as well.
  bool is_asked_for(const VerifyVariant& variant) const {
    if (arguments_.only.empty() || &variant == &variants_.front()) return true;
    if (variant.name.find(arguments_.only) != std::string::npos) return true;
    return std::any_of(variants_.begin(), variants_.end(), [&](const VerifyVariant& other) {
      return other.reference == variant.name && other.name.find(arguments_.only) != std::string::npos;
    });
  }

  bool is_reference(const VerifyVariant& variant) const {
    return std::any_of(variants_.begin(), variants_.end(),
                       [&](const VerifyVariant& other) { return other.reference == variant.name; });
  }

  Row row_of(const VerifyVariant& variant) {
    Row row{variant.name, "-", "-", "-", "", Verdict::kKept};
    if (!variant.impossible.empty()) {
      row.remark = variant.impossible + ".";
      row.verdict = Verdict::kNotThere;
      return row;
    }
    if (!variant.reference.empty() && !records_.contains(variant.reference)) {
      row.remark = "'" + variant.reference + "' has no record to compare with.";
      row.verdict = Verdict::kNotThere;
      return row;
    }
    const fs::path folder = scratch_.path() / std::to_string(next_folder_++);
    if (!train(variant, folder, row)) return row;
    if (!variant.reference.empty()) compare(variant, records_.at(variant.reference), folder, row);
    if (is_reference(variant)) {
      records_.emplace(variant.name, folder);
    } else {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
    return row;
  }

  /// Runs a variant. False: `row` says why there is no record.
  bool train(const VerifyVariant& variant, const fs::path& folder, Row& row) {
    if (variant.saved_by == 0) return start(variant.processes, variant.settings, {}, folder, row);
    const fs::path first = folder / "first", checkpoint = folder / "checkpoint";
    const std::int64_t half = arguments_.steps / 2;
    if (!start(variant.saved_by, variant.saved_settings,
               {"--save", checkpoint.string(), "--until", std::to_string(half)}, first, row)) {
      return false;
    }
    return start(variant.processes, variant.settings, {"--resume", checkpoint.string()}, folder, row);
  }

  bool start(int processes, const Settings& settings, const std::vector<std::string>& more, const fs::path& folder,
             Row& row) {
    fs::create_directories(folder);
    TrialCommand command;
    command.words = words_of(processes, settings, more, folder);
    command.out = folder / "stdout.log";
    command.err = folder / "stderr.log";
    command.time_out = kLongestRun;
    const TrialResult result = run_trial(command, Stopping::requested);
    if (result.end == TrialEnd::kEnded && result.signal == 0 && result.exit_code == 0) return true;
    if (result.end == TrialEnd::kEnded && result.exit_code == static_cast<int>(ExitCode::kConfig)) {
      row.verdict = Verdict::kNotThere;
      row.remark = "refused: " + failure_sentence(command.err);
      return false;
    }
    row.verdict = Verdict::kFailed;
    row.loss = row.gradients = row.weights = "FAILED";
    row.remark = judge_trial(result, folder, command).reason;
    return false;
  }

  std::vector<std::string> words_of(int processes, const Settings& settings, const std::vector<std::string>& more,
                                    const fs::path& folder) const {
    std::vector<std::string> words = {(install_prefix() / "bin/capstan").string()};
    if (processes > 1) words.insert(words.end(), {"launch", "-n", std::to_string(processes)});
    words.insert(words.end(), {"verify", "--record", folder.string(), "--steps", std::to_string(arguments_.steps)});
    words.insert(words.end(), more.begin(), more.end());
    const ConfigArguments& config = arguments_.config;
    if (!config.file.empty()) words.insert(words.end(), {"--config", config.file});
    const std::vector<std::string> reading = reading_options(config);
    words.insert(words.end(), reading.begin(), reading.end());
    const auto set = [&](const std::string& key, const Json& value) {
      words.insert(words.end(), {"--set", key + "=" + value.dump()});
    };
    for (const auto& [key, value] : config.overrides) set(key, value);
    set("capstan.run.steps", std::int64_t{arguments_.steps});
    for (const auto& [key, value] : settings) set(key, value);
    return words;
  }

  void compare(const VerifyVariant& variant, const fs::path& reference, const fs::path& folder, Row& row) const {
    const VerifyComparison found = compare_records(
        reference, folder, variant.bound, {.accumulation = accumulation_of(variant), .processes = variant.processes});
    row.loss = found.loss.text();
    row.gradients = found.gradients.text();
    row.weights = found.weights.text();
    if (!found.found.empty()) {
      row.verdict = Verdict::kBroken;
      row.remark = found.found + (found.explained || variant.hint.empty() ? "" : " " + variant.hint);
    } else if (!variant.bound.is_equal()) {
      row.remark = variant.bound.reason() + "; allowed " + short_number(variant.bound.first_gradients());
    }
  }

  static std::int64_t accumulation_of(const VerifyVariant& variant) {
    std::int64_t found = 1;
    for (const auto& [key, value] : variant.settings) {
      if (key == "gradient_accumulation_steps") found = value.as_integer();
    }
    return found;
  }

  std::string line_of(const Row& row) const {
    std::size_t width = 0;
    for (const VerifyVariant& variant : variants_) width = std::max(width, variant.name.size());
    const auto padded = [](std::string text, std::size_t columns) {
      text.resize(std::max(columns, text.size()), ' ');
      return text + "  ";
    };
    std::string line =
        padded(row.name, width) + padded(row.loss, 7) + padded(row.gradients, 9) + padded(row.weights, 7) + row.remark;
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

  bool kept() const {
    return std::none_of(rows_.begin(), rows_.end(), [](const Row& row) {
      return row.verdict == Verdict::kBroken || row.verdict == Verdict::kFailed;
    });
  }

  Json json() const {
    Json all = Json::object();
    all["variants"] = Json::array();
    for (const Row& row : rows_) {
      Json one = Json::object();
      one["name"] = row.name;
      one["verdict"] = row.verdict == Verdict::kKept     ? "kept"
                       : row.verdict == Verdict::kBroken ? "broken"
                       : row.verdict == Verdict::kFailed ? "failed"
                                                         : "not there";
      for (const auto& [key, text] : {std::pair("loss", row.loss),
                                      {"gradients", row.gradients},
                                      {"weights", row.weights},
                                      {"remark", row.remark}}) {
        one[key] = text;
      }
      all["variants"].push_back(one);
    }
    all["kept"] = kept();
    return all;
  }

  const VerifyArguments& arguments_;
  Scratch scratch_;
  std::vector<VerifyVariant> variants_;
  std::vector<Row> rows_;
  std::map<std::string, fs::path> records_;  // of variants that others are compared with
  std::int64_t next_folder_ = 0;
};

}  // namespace

int verify(const VerifyArguments& arguments) {
  if (arguments.steps < 2) throw UsageError("--steps: at least 2, half of which are before a checkpoint.");
  if (!arguments.record.empty()) return record_run(arguments);
  return Verification(arguments).run();
}

}  // namespace capstan::cli
