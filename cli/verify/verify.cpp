#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/scratch_folder.hpp"
#include "cli/stopping.hpp"
#include "cli/usage_error.hpp"
#include "cli/verify/verify_causes.hpp"
#include "cli/verify/verify_compare.hpp"
#include "cli/verify/verify_page.hpp"
#include "cli/verify/verify_record.hpp"
#include "cli/verify/verify_runs.hpp"
#include "cli/verify/verify_variants.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

using Row = VerifyRow;
using Verdict = VerifyRow::Verdict;

class Verification {
 public:
  explicit Verification(const VerifyArguments& arguments) : arguments_(arguments) {
    ConfigContext context = config_context(arguments.config);
    context.overrides.emplace_back("capstan.run.steps", std::int64_t{arguments.steps});
    context.world_size = 1;
    context.trains_alone = arguments.program.empty();
    context.takes_steps = false;  // a few steps say nothing about a schedule
    PluginIndex plugins;
    const Config config = load_config(config_text(arguments.config), context, plugins);
    variants_ = verify_variants(config, arguments.world, scratch_.path() / "store", arguments.peers);
    // A program in Python may have loaded LibTorch for CUDA, which excludes the emulated device.
    if (!arguments.program.empty()) {
      std::erase_if(variants_, [](const VerifyVariant& variant) { return !variant.plugin_path.empty(); });
    }
    seed_ = config.run.seed;
    title_ = "capstan verify: " + (config.optimizer ? config.optimizer->type : std::string("no optimizer"));
    if (config.run.model) title_ += ", model " + config.run.model->type;
    fs::create_directories(scratch_.path() / "store");
  }

  int run() {
    const Stopping stopping;
    if (!arguments_.json) print(line_of({"variant", "", "loss", "gradients", "weights", ""}) + "\n");
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
        show();
        return row.verdict == Verdict::kNotThere ? static_cast<int>(ExitCode::kConfig) : 1;
      }
      if (&variant == &variants_.front() + 1 && row.verdict == Verdict::kBroken) {
        log::error(
            "two equal runs differ, so that no comparison tells anything. Give the model's random numbers to "
            "LibTorch's generators, which the engine seeds.");
        break;
      }
    }
    show();
    return kept(rows_) ? 0 : 1;
  }

 private:
  void show() const {
    const Json found = verify_json(rows_);
    if (arguments_.json) print(found.dump(2) + "\n");
    if (!arguments_.json_file.empty()) write_file(arguments_.json_file, found.dump(2) + "\n");
    if (!arguments_.html.empty()) write_file(arguments_.html, verify_page(title_, rows_));
  }

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
    Row row{variant.name, variant.badge, "-", "-", "-", "", Verdict::kKept};
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
    if (variant.reference.empty()) {
      row.remark = warning_of(folder);
    } else {
      compare(variant, records_.at(variant.reference), folder, row);
    }
    if (is_reference(variant)) {
      records_.emplace(variant.name, folder);
    } else {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
    return row;
  }

  /// Runs a variant. False: `row` says why there is no record.
  bool train(const VerifyVariant& variant, const fs::path& folder, Row& row) const {
    const auto reference = records_.find(variant.reference);
    const VerifyRuns::Result result =
        VerifyRuns(arguments_, seed_)
            .run(variant, folder, reference == records_.end() ? fs::path() : reference->second);
    if (result.end == VerifyRuns::End::kRecorded) return true;
    if (result.end == VerifyRuns::End::kRefused) {
      row.verdict = Verdict::kNotThere;
      row.remark = "refused: " + result.why;
    } else {
      row.verdict = Verdict::kFailed;
      row.loss = row.gradients = row.weights = "FAILED";
      row.remark = result.why;
    }
    return false;
  }

  void compare(const VerifyVariant& variant, const fs::path& reference, const fs::path& folder, Row& row) const {
    const VerifyVariant& other = *std::find_if(variants_.begin(), variants_.end(),
                                               [&](const VerifyVariant& one) { return one.name == variant.reference; });
    const auto rows = [](const VerifyVariant& of) {
      return static_cast<double>(number_in(of.settings, "train_micro_batch_size_per_gpu"));
    };
    const VerifyComparison found =
        compare_records(reference, folder, variant.bound,
                        {.accumulation = number_in(variant.settings, "gradient_accumulation_steps"),
                         .processes = variant.processes,
                         .rows = rows(variant) / rows(other)});
    row.loss = found.loss.text();
    row.gradients = found.gradients.text();
    row.weights = found.weights.text();
    if (!found.found.empty()) {
      row.verdict = Verdict::kBroken;
      std::string cause = found.explained ? "" : cause_of(reference, folder, !variant.bound.is_equal());
      if (!found.explained && cause.empty()) cause = variant.hint;
      row.remark = found.found + (cause.empty() ? "" : " " + cause);
    } else if (!variant.bound.is_equal()) {
      row.remark = variant.bound.reason() + "; allowed " + short_number(variant.bound.first_gradients());
    }
  }

  static std::int64_t number_in(const Settings& settings, const std::string& wanted) {
    std::int64_t found = 1;
    for (const auto& [key, value] : settings) {
      if (key == wanted) found = value.as_integer();
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

  const VerifyArguments& arguments_;
  ScratchFolder scratch_{"capstan-verify-"};
  std::vector<VerifyVariant> variants_;
  std::string title_;
  std::uint64_t seed_ = 0;
  std::vector<Row> rows_;
  std::map<std::string, fs::path> records_;  // of variants that others are compared with
  std::int64_t next_folder_ = 0;
};

}  // namespace

int verify(const VerifyArguments& arguments) {
  if (arguments.steps < 2) throw UsageError("--steps: at least 2, half of which are before a checkpoint.");
  if (!arguments.record.empty()) return record_run(arguments);
  if (!arguments.peers.empty() && arguments.program.empty()) {
    throw UsageError("--peer: is of capstan.verify in Python, whose program has the loops to compare with.");
  }
  return Verification(arguments).run();
}

}  // namespace capstan::cli
