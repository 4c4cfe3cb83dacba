#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/progress_bar.hpp"
#include "cli/stopping.hpp"
#include "cli/terminal.hpp"
#include "cli/tune/tune_plan.hpp"
#include "cli/tune/tune_replay.hpp"
#include "cli/tune/tune_setup.hpp"
#include "cli/tune/tune_summary.hpp"
#include "cli/tune/tune_trials.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"
#include "core/registry/registry.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"
#include "core/tuning/micro_batches.hpp"
#include "core/tuning/tuning_table.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// A larger micro-batch must bring so much, or the search for the largest ends.
constexpr double kGain = 0.05;
constexpr std::size_t kMostPoints = 20'000;
constexpr const char* kTunerFile = "tuner.json";

/// One line at the bottom of a terminal: how far the search is.
class SearchBar {
 public:
  explicit SearchBar(bool wanted) : terminal_(STDERR_FILENO), on_(wanted && terminal_.interactive()) {}
  void show(std::size_t done, std::size_t most, const std::string& text) const {
    if (!on_) return;
    constexpr std::size_t kWidth = 20;
    const std::size_t filled = most == 0 ? 0 : std::min(kWidth, kWidth * done / most);
    std::string bar(filled, '=');
    if (filled < kWidth) bar += '>';
    bar.resize(kWidth, ' ');
    std::string line = "trial " + std::to_string(done + 1) + "/" + std::to_string(most) + " [" + bar + "] " + text;
    line = line.substr(0, static_cast<std::size_t>(std::max(20, terminal_.width() - 1)));
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
  }
  void clear() const {
    if (on_) std::fputs("\r\x1b[K", stderr);
  }

 private:
  Terminal terminal_;
  bool on_;
};

class Tuning {
 public:
  Tuning(const TuneArguments& arguments, const TuneSetup& setup)
      : arguments_(arguments), setup_(setup), metric_(setup.tuning().metric), bar_(arguments.progress) {}

  int run();

 private:
  const AutotuningConfig& tuning() const { return setup_.tuning(); }
  int devices() const { return setup_.processes; }
  std::int64_t largest_micro_batch() const;
  std::int64_t budget_for(std::int64_t most) const;
  std::vector<TunedKey> keys_of(int stage) const;
  void make_planner();
  std::vector<std::int64_t> ladder() const;
  std::optional<double> rate_of_micro_batch(int stage, std::int64_t size);
  std::vector<std::int64_t> found_micro_batches();
  void make_points(const std::vector<std::int64_t>& micro_batches);
  void refuse_without_points() const;
  std::vector<PointPlan> candidates() const;
  int record();
  void keep(const Tuner& tuner, const TuningFeatures& space, const SearchResult& now) const;
  std::vector<std::size_t> resume(Tuner& tuner, const TuningFeatures& space) const;
  SearchResult search_points(const std::vector<PointPlan>& plans);
  void write_results(const std::vector<PointPlan>& plans, const SearchResult& result, double seconds);
  int report_failure(const SearchResult& result) const;
  [[noreturn]] void train() const;
  TuningFeatures features(const std::vector<PointPlan>& plans) const;
  SearchPoint search_point(const PointPlan& plan) const;

  const TuneArguments& arguments_;
  const TuneSetup& setup_;
  TuningMetric metric_;
  SearchBar bar_;
  std::optional<TuneTrials> trials_;
  std::optional<PointPlanner> planner_;
  std::vector<PointPlan> plans_;
};

/// What max_train_micro_batch_size_per_gpu and max_train_batch_size leave.
std::int64_t Tuning::largest_micro_batch() const {
  std::int64_t most = tuning().max_train_micro_batch_size_per_gpu;
  if (tuning().max_train_batch_size) most = std::min(most, *tuning().max_train_batch_size / devices());
  const std::int64_t least = std::max(setup_.first_micro_batch, tuning().min_train_micro_batch_size_per_gpu);
  if (most < 1) {
    throw ConfigError("autotuning.max_train_batch_size: " + std::to_string(*tuning().max_train_batch_size) +
                      " is less than one sample for each of " + std::to_string(devices()) + " processes.");
  }
  if (!setup_.micro_batches && most < least) {
    throw ConfigError("autotuning: the smallest micro-batch to try, " + std::to_string(least) +
                      ", is above the largest, " + std::to_string(most) +
                      " (max_train_micro_batch_size_per_gpu, max_train_batch_size).");
  }
  return most;
}

std::int64_t Tuning::budget_for(std::int64_t most) const {
  if (setup_.elastic) return setup_.accumulation * most;
  return device_budget(most, setup_.accumulation, tuning().max_train_batch_size, setup_.processes, 1);
}

/// The user's lists, and, unless `fast`, what makes a difference at the stage; what the user gives a value stays.
std::vector<TunedKey> Tuning::keys_of(int stage) const {
  std::vector<TunedKey> keys = setup_.lists;
  if (tuning().fast) return keys;
  const Json* zero = setup_.config.document.find("zero_optimization");
  const auto given = [&](const std::string& path) {
    const std::string name = path.substr(path.rfind('.') + 1);
    return zero && zero->is_object() && zero->find(name) != nullptr;
  };
  std::vector<TunedKey> tuned = acting_keys(stage);
  for (const TunedKey& key : template_keys(stage)) {
    const auto same =
        std::find_if(tuned.begin(), tuned.end(), [&](const TunedKey& one) { return one.path == key.path; });
    if (same == tuned.end()) {
      tuned.push_back(key);
    } else {
      same->values.insert(same->values.end(), key.values.begin(), key.values.end());
    }
  }
  if (tuning().model_info && tuning().model_info->hidden_size && stage == 3) {
    const Json sized = stage_template(3, tuning().model_info->hidden_size);
    for (TunedKey& key : tuned) {
      const std::string name = key.path.substr(key.path.rfind('.') + 1);
      if (name.starts_with("stage3_p") || name == "reduce_bucket_size") {
        key.values.push_back(static_cast<std::int64_t>(sized.at(name).as_number()));
      }
    }
  }
  for (const TunedKey& key : tuned) {
    if (!given(key.path)) keys.push_back(key);
  }
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    const Json* value = zero && zero->is_object() ? zero->find(section) : nullptr;
    if (value && value->is_object()) keys.push_back({std::string("zero_optimization.") + section, {*value, Json()}});
  }
  if (const Json* capstan = setup_.config.document.find("capstan"); capstan && capstan->is_object()) {
    if (const Json* value = capstan->find("recompute"); value && value->is_object()) {
      keys.push_back({"capstan.recompute", {*value, Json()}});
    }
  }
  return keys;
}

void Tuning::make_planner() {
  if (setup_.program.empty()) {
    planner_.emplace(setup_, arguments_.limit);
    return;
  }
  std::optional<ModelEstimate> estimate;
  ActivationBytes activations;
  const bool half = setup_.config.precision.compute != Precision::kFp32;
  if (trials_) {
    print("looking at the program's model\n");
    const std::int64_t second = 2;
    const Json one = trials_->profile(1), two = trials_->profile(second);
    const auto bytes = [](const Json& info) {
      return static_cast<double>(info.at("activation_mem_per_gpu").as_integer());
    };
    activations = activation_line(1, bytes(one), second, bytes(two));
    estimate = ModelEstimate{one.at("num_params").as_integer(), half, setup_.processes, 1};
  }
  if (tuning().model_info && tuning().model_info->num_params) {
    estimate = ModelEstimate{*tuning().model_info->num_params, half, setup_.processes, 1};
  }
  planner_.emplace(setup_, arguments_.limit, estimate, activations);
}

/// Doubling, from the smallest to the largest.
std::vector<std::int64_t> Tuning::ladder() const {
  const std::int64_t most = largest_micro_batch();
  std::vector<std::int64_t> steps;
  const std::int64_t first = std::max(setup_.first_micro_batch, tuning().min_train_micro_batch_size_per_gpu);
  for (std::int64_t size = std::min(first, most); size < most; size *= 2) steps.push_back(size);
  steps.push_back(most);
  return steps;
}

/// Runs a micro-batch at a stage; without a value where the plan leaves it out or the trial fails.
std::optional<double> Tuning::rate_of_micro_batch(int stage, std::int64_t size) {
  TuningPoint point = all_points(stage, {}, {size}, {budget_for(size), devices()}).front();
  for (const TunedKey& list : setup_.lists) point.values.emplace_back(list.path, list.values.front());
  if (!planner_->plan(point).excluded.empty()) return std::nullopt;
  bar_.show(trials_->outcomes().size(), trials_->outcomes().size() + 1, "micro-batch " + std::to_string(size));
  const TrialOutcome& outcome = trials_->run(point);
  if (Stopping::requested()) return std::nullopt;
  bar_.clear();
  // The least latency is that of the smallest micro-batch: what a larger one brings, the throughput tells.
  TuningMetric throughput("throughput");
  TuningMetric& metric = metric_.is_least() ? throughput : metric_;
  print("  micro-batch " + std::to_string(size) + " at stage " + std::to_string(stage) + ": " +
        (outcome.ok() ? metric.text(point, metric.seconds(point, outcome)) : outcome.outcome + ", " + outcome.reason) +
        "\n");
  if (!outcome.ok()) return std::nullopt;
  return metric.counts_operations() ? outcome.flops : outcome.throughput;
}

/// Finds the largest micro-batch that fits and pays, and takes DeepSpeed's list below it. Doubling comes first, where
/// DeepSpeed begins at the largest conceivable one: a step of that may take minutes on processors. Stages differ in
/// memory, not in what a larger micro-batch brings: a stage goes on where memory ended the one before it.
std::vector<std::int64_t> Tuning::found_micro_batches() {
  const std::vector<std::int64_t> steps = ladder();
  std::set<std::int64_t> sizes;
  std::int64_t most = 0;
  for (const int stage : setup_.stages) {
    std::vector<std::int64_t> rest;
    if (most > 0) rest.push_back(most);
    std::copy_if(steps.begin(), steps.end(), std::back_inserter(rest), [&](std::int64_t size) { return size > most; });
    const LargestMicroBatch found = largest_micro_batch_that_pays(
        rest, kGain, [&](std::int64_t size) { return rate_of_micro_batch(stage, size); }, Stopping::requested);
    if (found.size > 0) {
      const std::vector<std::int64_t> list =
          micro_batch_list(std::max<std::int64_t>(1, std::min(found.size, steps.front())), found.size,
                           tuning().num_tuning_micro_batch_sizes, budget_for(found.size));
      sizes.insert(list.begin(), list.end());
    }
    most = std::max(most, found.size);
    if (!found.bounded || Stopping::requested()) break;
  }
  return sizes.empty() ? steps : std::vector<std::int64_t>(sizes.begin(), sizes.end());
}

void Tuning::make_points(const std::vector<std::int64_t>& micro_batches) {
  const std::int64_t most = *std::max_element(micro_batches.begin(), micro_batches.end());
  const BatchBudget budget{budget_for(most), devices()};
  std::vector<TuningPoint> points;
  for (const int stage : setup_.stages) {
    const std::vector<TuningPoint> more =
        all_points(stage, distinct_keys(stage, keys_of(stage), planner_->facts()), micro_batches, budget);
    points.insert(points.end(), more.begin(), more.end());
    if (points.size() > kMostPoints) {
      throw ConfigError("autotuning: the lists make more than " + grouped(kMostPoints) + " points. Shorten them.");
    }
  }
  plans_.clear();
  std::set<std::string> effects;
  for (const TuningPoint& point : distinct_points(points, planner_->facts())) {
    PointPlan plan = planner_->plan(point);
    // Buckets of different sizes may hold the same parameters.
    std::string key = std::to_string(point.stage) + "|" + std::to_string(point.micro_batch) + "|" +
                      std::to_string(point.accumulation) + "|" + plan.effect;
    for (const auto& [path, value] : point.values) {
      if (plan.effect.empty() || !path.ends_with(".reduce_bucket_size")) key += "|" + path + "=" + value.dump();
    }
    if (plan.excluded.empty() && !effects.insert(key).second) continue;
    plans_.push_back(std::move(plan));
  }
}

std::vector<PointPlan> Tuning::candidates() const {
  std::vector<PointPlan> tried;
  for (const PointPlan& plan : plans_) {
    if (plan.excluded.empty()) tried.push_back(plan);
  }
  return tried;
}

void Tuning::refuse_without_points() const {
  const PointPlan* least = nullptr;
  for (const PointPlan& plan : plans_) {
    if (plan.excluded.empty()) return;
    if (plan.bytes > 0 && (!least || plan.bytes < least->bytes)) least = &plan;
  }
  std::string text = "no point is left to try, with at most " + planner_->limit_text() + ".";
  if (least) {
    text += " The smallest, " + least->point.name + ", " + least->excluded +
            " A higher zero_optimization.stage, more processes, offload or a smaller model needs less.";
  }
  throw RuntimeFault(text + "\n" + excluded_text(plans_));
}

TuningFeatures Tuning::features(const std::vector<PointPlan>& plans) const {
  TuningFeatures made;
  made.features = {"zero_optimization.stage", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
  const std::size_t own = made.features.size();
  for (const PointPlan& plan : plans) {
    for (const auto& [path, value] : plan.point.values) {
      if (std::find(made.features.begin(), made.features.end(), path) == made.features.end())
        made.features.push_back(path);
    }
  }
  std::vector<std::vector<std::string>> choices(made.features.size());
  for (const PointPlan& plan : plans) {
    made.points.push_back(plan.point.name);
    std::vector<double> row(made.features.size(), -1);  // -1: the key does not act at this stage
    row[0] = plan.point.stage;
    row[1] = static_cast<double>(plan.point.micro_batch);
    row[2] = static_cast<double>(plan.point.accumulation);
    for (const auto& [path, value] : plan.point.values) {
      const auto at = static_cast<std::size_t>(
          std::find(made.features.begin() + static_cast<std::ptrdiff_t>(own), made.features.end(), path) -
          made.features.begin());
      if (value.is_number()) {
        row[at] = value.as_number();
      } else if (value.is_bool()) {
        row[at] = value.as_bool() ? 1 : 0;
      } else {
        std::vector<std::string>& known = choices[at];
        const auto place = std::find(known.begin(), known.end(), value.dump());
        row[at] = static_cast<double>(place - known.begin());
        if (place == known.end()) known.push_back(value.dump());
      }
    }
    made.values.insert(made.values.end(), row.begin(), row.end());
  }
  return made;
}

SearchPoint Tuning::search_point(const PointPlan& plan) const {
  return {plan.point.stage, plan.terms, metric_.samples(plan.point)};
}

/// What a tuner that can save is to go on with; nothing where it is told everything again.
void Tuning::keep(const Tuner& tuner, const TuningFeatures& space, const SearchResult& now) const {
  if (!tuner.saves()) return;
  Json json = Json::object();
  json["tuner"] = tuner.type();
  Json& points = json["points"] = Json::array();
  for (const std::string& name : space.points) points.push_back(name);
  Json& asked = json["asked"] = Json::array();
  for (const TriedPoint& tried : now.tried) asked.push_back(static_cast<std::int64_t>(tried.point));
  json["state"] = tuner.save();
  replace_file(trials_->results() / kTunerFile, json.dump() + "\n");
}

/// The points that a search of the same space with the same tuner has tried before, once the tuner knows of them.
std::vector<std::size_t> Tuning::resume(Tuner& tuner, const TuningFeatures& space) const {
  const std::optional<Json> json = read_json(trials_->results() / kTunerFile);
  if (!json || !tuner.saves()) return {};
  const Json *type = json->find("tuner"), *points = json->find("points"), *asked = json->find("asked"),
             *state = json->find("state");
  if (!type || !points || !asked || !state || *type != Json(tuner.type()) || !state->is_string()) return {};
  Json now = Json::array();
  for (const std::string& name : space.points) now.push_back(name);
  if (*points != now || !asked->is_array()) return {};
  std::vector<std::size_t> before;
  for (const Json& point : asked->as_array()) before.push_back(static_cast<std::size_t>(point.as_integer()));
  tuner.load(state->as_string(), before);
  return before;
}

SearchResult Tuning::search_points(const std::vector<PointPlan>& plans) {
  if (!setup_.config.tuner) {
    throw PluginError(setup_.plugins.missing_text("autotuning.tuner_type", "tuner", tuning().tuner_type));
  }
  const ComponentChoice& choice = *setup_.config.tuner;
  Registry registry(setup_.plugins, setup_.config.plugin_sha256);
  Tuner tuner(registry.create(choice.where, "tuner", choice.type, choice.params, model_host()));
  std::vector<SearchPoint> points;
  for (const PointPlan& plan : plans) points.push_back(search_point(plan));
  SearchLimits limits;
  limits.trials_per_stage = static_cast<std::size_t>(tuning().tuner_num_trials);
  limits.early_stopping = static_cast<std::size_t>(tuning().tuner_early_stopping);
  const std::size_t most = std::min(plans.size(), limits.trials_per_stage * setup_.stages.size());
  print("searching " + std::to_string(plans.size()) + " points with the tuner '" + choice.type + "'\n");
  const TuningFeatures space = features(plans);
  tuner.start(space, most, setup_.config.run.seed);
  const std::vector<std::size_t> before = resume(tuner, space);
  std::map<std::size_t, int> runs;
  std::size_t done = 0;
  std::string best = "";
  const RunPoint run = [&](std::size_t at) -> std::optional<double> {
    const TuningPoint& point = plans[at].point;
    bar_.show(done, most, point.name + (best.empty() ? "" : "  best " + best));
    const int number = runs[at]++;
    const TrialOutcome& outcome = trials_->run(point, number);
    bar_.clear();
    if (outcome.outcome == "interrupted") return std::nullopt;
    done += number == 0;
    print("  " + std::string(number == 0 ? "" : "again ") + point.name + ": " +
          (outcome.ok() ? metric_.text(point, metric_.seconds(point, outcome))
                        : outcome.outcome + ", " + outcome.reason) +
          "\n");
    return outcome.ok() ? std::optional(metric_.seconds(point, outcome)) : std::nullopt;
  };
  return search(
      tuner, points, planner_->guess(), limits, run, Stopping::requested, before, [&](const SearchResult& now) {
        keep(tuner, space, now);
        if (!now.best) return;
        const TuningPoint& point = plans[now.tried[*now.best].point].point;
        best = point.name + " " + metric_.text(point, mean_of(now.tried[*now.best].costs) * metric_.samples(point));
      });
}

int Tuning::record() {
  if (!setup_.micro_batches) {
    throw ConfigError("train_micro_batch_size_per_gpu: a table needs a list of micro-batches, for instance [1, 2, 4].");
  }
  const std::vector<PointPlan> plans = candidates();
  TuningTable table;
  table.space = features(plans);
  table.guess = planner_->guess();
  table.runs.resize(plans.size());
  table.peaks.resize(plans.size());
  for (const PointPlan& plan : plans) table.points.push_back(search_point(plan));
  const std::string model = setup_.config.run.model ? setup_.config.run.model->type : "a program";
  table.about = counted(setup_.processes, "process", "processes") + ", " + model + ", " +
                counted(arguments_.repeats, "run") + " of each point in turns";
  std::vector<bool> fails(plans.size());
  for (int run = 0; run < arguments_.repeats; ++run) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (fails[i]) continue;
      bar_.show(i + static_cast<std::size_t>(run) * plans.size(),
                plans.size() * static_cast<std::size_t>(arguments_.repeats), plans[i].point.name);
      const TrialOutcome& outcome = trials_->run(plans[i].point, run);
      if (Stopping::requested()) return static_cast<int>(ExitCode::kInterrupted);
      if (!outcome.ok()) {
        fails[i] = true;
        table.runs[i].clear();
        continue;
      }
      table.runs[i].push_back(outcome.latency);
      table.peaks[i] = std::max(table.peaks[i], outcome.peak_bytes);
    }
  }
  bar_.clear();
  replace_file(arguments_.record, table.json().dump(1) + "\n");
  print("wrote " + arguments_.record + ": " + std::to_string(plans.size()) + " points, " +
        std::to_string(arguments_.repeats) + " runs each\n");
  return 0;
}

void Tuning::write_results(const std::vector<PointPlan>& plans, const SearchResult& result, double seconds) {
  const fs::path folder = trials_->results();
  const std::string summary = summary_text(summary_rows(plans, result, metric_), seconds);
  replace_file(folder / "summary.txt", summary);
  replace_file(folder / "tuning.json",
               tuning_json(plans, result, metric_, trials_->outcomes(), seconds).dump(2) + "\n");
  print(summary);
  if (!result.best) return;
  const PointPlan& best = plans[result.tried[*result.best].point];
  const Json document = point_document(setup_, best.point);
  const fs::path file = folder / "ds_config_optimal.json";
  replace_file(file, document.dump(2) + "\n");
  replace_file(folder / "cmd_optimal.txt", shell_text(command_words(setup_, file.string(), document)) + "\n");
  print("the fastest is " + best.point.name + ": " + file.string() + "\n");
  if (setup_.train_batch && *setup_.train_batch != best.point.train_batch) {
    print("its train_batch_size is " + std::to_string(best.point.train_batch) +
          ", where the file that was tuned says " + std::to_string(*setup_.train_batch) + "\n");
  }
}

int Tuning::report_failure(const SearchResult&) const {
  std::string text = "every trial failed:";
  for (const std::string& line : grouped_failures(trials_->outcomes())) text += "\n  " + line;
  log::error(text + "\n  Their commands and output are in " + trials_->results().string() + ".");
  return static_cast<int>(ExitCode::kFailure);
}

void Tuning::train() const {
  const fs::path file = trials_->results() / "ds_config_optimal.json";
  std::vector<std::string> words = command_words(setup_, file.string(), *read_json(file));
  if (setup_.program.empty()) {
    if (arguments_.progress) words.erase(std::find(words.begin(), words.end(), "--no-progress"));
    if (!arguments_.init_from.empty()) words.insert(words.end(), {"--init-from", arguments_.init_from});
  }
  print("training: " + shell_text(words) + "\n");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw RuntimeFault("'" + words[0] + "' cannot be started: " + std::strerror(errno) + ".");
}

int Tuning::run() {
  const auto begun = std::chrono::steady_clock::now();
  if (arguments_.run && setup_.program.empty() && !setup_.config.run.steps) {
    throw ConfigError("capstan.run.steps: --run trains, so say how long: --steps 1000, for instance.");
  }
  // Each trial would fail by it.
  if (!arguments_.dry_run && setup_.program.empty() && setup_.config.run.data_paths.empty()) {
    throw ConfigError("capstan.data.path: not given, and trials train. Name text files or folders: --data corpus/.");
  }
  largest_micro_batch();
  if (!arguments_.dry_run) {
    trials_.emplace(setup_, arguments_.time_out, Stopping::requested);
  }
  make_planner();
  if (trials_) trials_->set_limit(planner_->limit());
  if (arguments_.dry_run) {
    make_points(setup_.micro_batches.value_or(ladder()));
    refuse_without_points();
    if (!setup_.program.empty() && !(tuning().model_info && tuning().model_info->num_params)) {
      print("what the program's model needs is not known without a trial: nothing is excluded for its memory\n");
    }
    if (!setup_.micro_batches) print("micro-batches are doubled for as long as that pays:\n");
    print(space_text(plans_, *planner_, metric_));
    return 0;
  }
  make_points(setup_.micro_batches ? *setup_.micro_batches : ladder());
  refuse_without_points();
  if (!setup_.micro_batches) make_points(found_micro_batches());
  refuse_without_points();
  print(excluded_text(plans_));
  if (!arguments_.record.empty()) return record();
  const std::vector<PointPlan> plans = candidates();
  const SearchResult result = search_points(plans);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (!result.stopped.empty()) print("ended: " + result.stopped + ".\n");
  write_results(plans, result, seconds);
  if (Stopping::requested()) {
    log::info("interrupted; the same command goes on where it was.");
    return static_cast<int>(ExitCode::kInterrupted);
  }
  if (!result.best) return report_failure(result);
  if (arguments_.run) train();
  return 0;
}

}  // namespace

int tune(const TuneArguments& arguments) {
  if (!arguments.replay.empty()) return tune_replay(arguments);
  const Stopping stopping;
  const TuneSetup setup = tune_setup(arguments);
  return Tuning(arguments, setup).run();
}

}  // namespace capstan::cli
