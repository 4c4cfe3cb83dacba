#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/progress_bar.hpp"
#include "cli/saved_setup.hpp"
#include "cli/settings_text.hpp"
#include "cli/tokenizer_check.hpp"
#include "cli/traffic_text.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/run/run.hpp"
#include "core/run/run_model.hpp"

namespace capstan::cli {
namespace {

/// The output of the command: settings, lines, a progress bar, and the report of --report.
class Shown {
 public:
  explicit Shown(const TrainArguments& arguments)
      : report_(arguments.report), progress_(arguments.progress), init_from_(arguments.init_from) {}

  RunParts parts();

 private:
  RunData open(const LoadedConfig& loaded, const Model& model);
  double step(Engine& engine, const NextBatch& next);
  void report(Engine& engine);
  void show(const StepProgress& facts);
  static void print_line(std::string_view line) {
    ProgressBar::clear();
    print(std::string(line) + "\n");
  }

  std::string report_;
  bool progress_;
  std::string init_from_;
  std::shared_ptr<const Dataset> data_;
  CommsLog::TrafficByName before_step_, after_step_;  // what had been sent before the last step, and at its end
  std::optional<Engine> engine_;  // where the report is asked for: it records from the engine's first call on
  std::optional<ProgressBar> bar_;
};

RunParts Shown::parts() {
  RunParts parts;
  parts.data = [this](const LoadedConfig& loaded, const Model& model) { return open(loaded, model); };
  parts.starts = [this](const LoadedConfig& loaded, const Model& model) {
    print(settings_text(loaded.config, loaded.plugins, model, *data_, Terminal(STDOUT_FILENO)));
  };
  parts.print = print_line;
  if (progress_) parts.progress = [this](const StepProgress& facts) { show(facts); };
  if (!report_.empty()) {
    parts.begin = [this](const LoadedConfig& loaded, const MakeEngine& make) -> Engine& {
      engine_.emplace(make(build_model(loaded)));
      engine_->comms_log().record_all(true);
      return *engine_;
    };
    parts.end = [this] { engine_.reset(); };
    parts.step = [this](Engine& engine, const NextBatch& next) { return step(engine, next); };
    parts.report = [this](Engine& engine, const LoadedConfig&) { report(engine); };
  }
  return parts;
}

RunData Shown::open(const LoadedConfig& loaded, const Model& model) {
  warn_of_another_tokenizer(loaded.config.run.data_paths,
                            init_from_.empty() ? initial_weights(loaded.config) : init_from_);
  data_ = std::make_shared<const Dataset>(open_data(loaded.config.run.data_paths, "capstan.data.path", loaded, model));
  return run_data(data_);
}

double Shown::step(Engine& engine, const NextBatch& next) {
  before_step_ = engine.comms_log().traffic();
  const double loss = engine.train_batch(next);
  after_step_ = engine.comms_log().traffic();
  return loss;
}

void Shown::report(Engine& engine) {
  const auto print_once = [&](std::string_view text) {
    if (engine.rank() == 0) print_line(text);
  };
  if (engine.world_size() == 1) return print_once("comms: one process exchanges nothing");
  print_once(traffic_text(engine.comms_log().traffic(), before_step_, after_step_));
  // All ranks call it, because the comparison is a collective.
  print_once(engine.comms_summary(report_ == "stragglers").text());
}

void Shown::show(const StepProgress& facts) {
  if (!bar_) bar_.emplace(true);
  bar_->show(facts);
}

}  // namespace

int train(const TrainArguments& arguments) {
  Shown shown(arguments);
  RunSource source = source_of(arguments.config);
  if (!arguments.resume.empty()) add_saved_model(source, arguments.resume);
  Run run(std::move(source), shown.parts(),
          {.resume = arguments.resume,
           .init_from = arguments.init_from,
           .handles_signals = true,
           .load = {.optimizer_states = !arguments.fresh_optimizer, .schedule = !arguments.fresh_schedule}});
  return run.train();
}

}  // namespace capstan::cli
