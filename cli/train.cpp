#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "cli/best_evaluation.hpp"
#include "cli/checkpoint_name.hpp"
#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/elastic_account.hpp"
#include "cli/elastic_member.hpp"
#include "cli/elastic_restart.hpp"
#include "cli/elastic_saved.hpp"
#include "cli/elastic_snapshots.hpp"
#include "cli/elastic_training.hpp"
#include "cli/interrupt.hpp"
#include "cli/numbers.hpp"
#include "cli/program.hpp"
#include "cli/progress_bar.hpp"
#include "cli/run_checks.hpp"
#include "cli/run_setup.hpp"
#include "cli/save_folder.hpp"
#include "cli/settings_text.hpp"
#include "cli/traffic_text.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/config/tools/config_dump.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

/// Ends an evaluation that a signal interrupts.
struct Interrupted {};

/// A checkpoint's folder as --resume takes it.
std::string resume_name(const std::string& checkpoint) {
  const std::filesystem::path path(checkpoint);
  return path.parent_path().string() + ":" + path.filename().string();
}

std::string continue_with(const std::string& checkpoint) { return "Continue with --resume " + resume_name(checkpoint); }

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

/// One training run, from the first step of this process to the last.
class TrainingRun {
 public:
  using Kind = Interrupt::Kind;

  /// `member`: this process as one of an elastic launch, or null. `restart`: as one that torchrun starts anew, or null.
  TrainingRun(const TrainArguments& arguments, const LoadedConfig& loaded, Model model, Interrupt& interrupt,
              ElasticMember* member, const ElasticRestart* restart)
      : loaded_(loaded),
        interrupt_(interrupt),
        member_(member),
        restart_(restart),
        run_(loaded.config.run),
        folder_(loaded),
        data_(open_data(run_.data_paths, "capstan.data.path", loaded, model)),
        order_(data_.samples(), run_.seed, run_.shuffle),
        eval_data_(open_eval_data(model)),
        speaks_(loaded.communicator->rank() == 0),
        report_(arguments.report),
        bar_(arguments.progress && speaks_) {
    if (!member && !restart) folder_.refuse_other_run(arguments.resume);
    if (speaks_ && (!member || member->world().generation == 1)) {
      print(settings_text(loaded.config, loaded.plugins, model, data_, Terminal(STDOUT_FILENO)));
    }
    engine_.emplace(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
    if (!report_.empty()) engine_->comms_log().record_all(true);
    engine_->start_sampler(data_.samples(), data_.fingerprint());
    check_passes(loaded.config, data_.samples());
    engine_->set_report_output([this](std::string_view text) { print_line(text); });
    if (!member && !restart) {
      begin(arguments);
    } else if (!go_on()) {
      if (!saved_step_) {
        folder_.refuse_other_run(arguments.resume);
        begin(arguments);
      }
      account_.begun = now();
      take_first_snapshot();
    }
    if (snapshots_ && speaks_) write_elastic_metrics();
    if (loaded.config.report.dump_state) print_line(engine_->state_dump() + "\n" + config_dump(loaded.config));
    pace_.emplace(loaded.config.batch.train_batch_size, data_.sequence_length());
  }

  /// The engine waits for copies to other hosts that are under way. Where a host is gone and the launcher that would
  /// end this process is gone as well, nothing else bounds that wait.
  ~TrainingRun() {
    const Interrupt::Part bounded(interrupt_, Kind::kStep, [this](const std::string& bound) {
      log::warning("interrupted as the engine was closed, which did not end within " + bound + ". " + what_is_kept());
    });
    engine_.reset();
  }
  TrainingRun(const TrainingRun&) = delete;

  /// The exit code; nothing where an elastic run goes on with other processes.
  std::optional<int> run();
  /// Saves what an elastic run has come to, by one process alone.
  std::optional<int> save_only();

 private:
  void begin(const TrainArguments& arguments);
  bool go_on();
  void go_on_from_disk();
  std::int64_t generation() const { return member_ ? member_->world().generation : restart_->generation(); }
  void take_first_snapshot();
  Json kept_with_snapshot() const;
  void snapshot();
  std::optional<int> pause();
  void write_elastic_metrics();
  void print_line(std::string_view text) const {
    if (!speaks_) return;
    ProgressBar::clear();
    print(std::string(text) + "\n");
  }

  std::optional<Dataset> open_eval_data(const Model& model) const {
    if (run_.eval_data_paths.empty()) return std::nullopt;
    return open_data(run_.eval_data_paths, "capstan.data.eval_path", loaded_, model);
  }

  /// On all ranks alike: a single process stops at once, several after the step in which they agreed.
  bool stop_requested() const { return engine_->world_size() == 1 ? asked_to_stop() : engine_->stop_agreed(); }
  bool asked_to_stop() const { return Interrupt::requested() || (member_ && member_->is_to_pause()); }
  std::int64_t step() const { return engine_->progress().global_steps; }
  /// Seconds by the clock of all processes of the run: of those that torchrun starts, that of the day.
  double now() const {
    if (member_) return member_->folder().seconds();
    using Day = std::chrono::duration<double>;
    return restart_ ? Day(std::chrono::system_clock::now().time_since_epoch()).count() : steady_seconds();
  }
  void resume(const CheckpointName& name);
  void take_teacher();
  Batch next_batch(std::int64_t micro_step);
  Json data_identity() const;
  void warn_about_other_data(const Json& client_state, const std::string& checkpoint) const;
  void train_step();
  void report_step(double seconds_since_begin);
  bool train_step_or_leave();
  std::string what_is_kept() const;
  bool saved_in_background(std::chrono::milliseconds patience) const;
  Interrupt::Part part(Kind kind, const std::string& what);
  void evaluate();
  void save();
  void note_saved();
  void mark_best();
  bool out_of_patience() const { return run_.patience > 0 && best_.since() >= run_.patience; }
  std::string best_text() const;
  void finish_saving();
  void finish(double seconds);
  void close_run();
  void report_comms();
  int interrupted();

  const LoadedConfig& loaded_;
  Interrupt& interrupt_;
  ElasticMember* member_;
  const ElasticRestart* restart_;
  const RunConfig& run_;
  SaveFolder folder_;
  Dataset data_;
  BatchOrder order_;
  std::optional<Dataset> eval_data_;
  bool speaks_;  // one rank does, for all
  std::string report_;
  CommsLog::TrafficByName before_step_, after_step_;  // what had been sent before the last step, and at its end
  ProgressBar bar_;
  std::optional<ElasticSnapshots> snapshots_;  // of an elastic run
  std::optional<Engine> engine_;
  std::optional<Pace> pace_;
  Forecast forecast_;
  std::string saving_;  // the checkpoint that is under way; empty: none
  std::string kept_;    // the last that is complete; empty: none
  std::optional<std::int64_t> saved_step_, evaluated_step_;
  BestEvaluation best_;
  double first_loss_ = 0;
  std::int64_t steps_here_ = 0;
  ElasticAccount account_;
};

/// From initial values, given weights or a checkpoint.
void TrainingRun::begin(const TrainArguments& arguments) {
  if (!arguments.init_from.empty()) engine_->load_weights(arguments.init_from);
  // A resumed student is what it has become.
  if (loaded_.config.compression.layer_reduction.enabled && arguments.resume.empty()) take_teacher();
  if (!arguments.resume.empty()) resume(CheckpointName::parse(arguments.resume));
}

/// From what an elastic run has saved last, if anything, where it has no snapshot that can be used.
void TrainingRun::go_on_from_disk() {
  if (!member_) return;
  const std::optional<CheckpointName> saved = last_saved(member_->folder(), *loaded_.communicator);
  if (!saved) return;
  if (speaks_)
    log::warning("no snapshot of the run can be used: it goes on from the newest checkpoint that it has saved.");
  resume(*saved);
}

/// From the newest snapshot of an elastic run, or a checkpoint in its place. False where there is no snapshot.
bool TrainingRun::go_on() {
  member_ ? snapshots_.emplace(*member_) : snapshots_.emplace(*restart_);
  const std::optional<Json> kept = snapshots_->load(*engine_);
  if (!kept) go_on_from_disk();
  if (kept) {
    folder_.go_on(engine_->run_id(), step());
    // What torchrun has done with the time since then nobody knows.
    const double since = member_ ? member_->world().since : 0, waited = member_ ? member_->world().waited : 0;
    account_ = ElasticAccount::go_on(kept->at("account"), since, waited, now());
    first_loss_ = kept->at("first_loss").as_number();
    steps_here_ = kept->at("steps_here").as_integer();
    best_.load(kept->find("best"));
  }
  if (generation() > 1 && (!member_ || member_->world().end.empty())) {
    print_line("generation " + grouped(generation()) + ": " + grouped(engine_->world_size()) +
               (engine_->world_size() == 1 ? " process goes" : " processes go") + " on from step " + grouped(step()) +
               " (" + (member_ ? member_->world().change : "torchrun has started the processes anew") + ")");
  }
  return kept.has_value();
}

/// Whatever comes next, the run need not begin anew.
void TrainingRun::take_first_snapshot() {
  try {
    snapshots_->take(*engine_, kept_with_snapshot());
  } catch (const PeerFault&) {
    throw;
  } catch (const RuntimeFault& fault) {
    if (member_) throw;
    // All ranks find it. Who trains by torchrun may have checkpoints on disk in place of snapshots.
    if (speaks_) log::warning(std::string(fault.what()) + " The run goes on without snapshots.");
    engine_->want_snapshots(false);
    snapshots_.reset();
  }
}

void TrainingRun::write_elastic_metrics() {
  const std::pair<const char*, double> metrics[] = {
      {"generation", static_cast<double>(generation())},
      {"processes", engine_->world_size()},
      {"losses", member_ ? static_cast<double>(member_->losses()) : static_cast<double>(generation() - 1)},
      {"seconds_repeated", account_.repeated},
      {"seconds_regrouping", account_.regrouping},
      {"seconds_waiting", account_.waiting},
  };
  for (const auto& [name, value] : metrics) engine_->write_metric(std::string("Train/Elastic/") + name, value);
}

Json TrainingRun::kept_with_snapshot() const {
  Json kept = Json::object();
  kept["data"] = data_identity();
  kept["account"] = account_.json(now());
  kept["first_loss"] = first_loss_;
  kept["steps_here"] = steps_here_;
  kept["best"] = best_.json();
  return kept;
}

Json TrainingRun::data_identity() const {
  Json identity = Json::object();
  identity["fingerprint"] = data_.fingerprint();
  identity["samples"] = data_.samples();
  identity["sequence_length"] = data_.sequence_length();
  identity["seed"] = std::to_string(run_.seed);  // as text: it may not fit a signed number
  identity["shuffle"] = run_.shuffle;
  return identity;
}

void TrainingRun::warn_about_other_data(const Json& client_state, const std::string& checkpoint) const {
  const Json* then = client_state.find("data");
  if (then == nullptr) return;
  const Json now = data_identity();
  const auto differs = [&](const char* key) {
    const Json* value = then->find(key);
    return value != nullptr && *value != now.at(key);
  };
  const auto told = [&](const char* key) {
    const Json* value = then->find(key);
    return value == nullptr ? std::string("?") : value->is_string() ? value->as_string() : value->dump();
  };
  if (differs("fingerprint") || differs("sequence_length")) {
    log::warning(checkpoint + ": was trained on other data (" + told("samples") + " samples of " +
                 told("sequence_length") + " tokens, now " + grouped(data_.samples()) + " of " +
                 grouped(data_.sequence_length()) + "). The run goes on with this data, from sample " +
                 grouped(engine_->progress().global_samples) + " of its order.");
  } else if (differs("seed") || differs("shuffle")) {
    log::warning(checkpoint + ": was trained with another order of the data (seed " + told("seed") + ", now " +
                 std::to_string(run_.seed) + "). The run does not continue as it would have.");
  }
}

void TrainingRun::take_teacher() {
  if (run_.teacher.empty()) {
    throw ConfigError(
        "compression_training.layer_reduction.enabled: the student needs a teacher. Give --teacher CHECKPOINT, or "
        "capstan.teacher.path.");
  }
  engine_->load_teacher(run_.teacher);
  const LayerReductionConfig& section = loaded_.config.compression.layer_reduction;
  std::string layers;
  for (const std::int64_t layer : section.teacher_layer) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
  print_line("layer reduction: the student's " + std::to_string(section.teacher_layer.size()) + " layers are " +
             layers + " of '" + section.module_name_prefix + "' of " + run_.teacher);
}

void TrainingRun::resume(const CheckpointName& name) {
  const std::string tag = name.tag.empty() ? latest_tag(name.dir) : tag_named(name.dir, name.tag);
  const std::string checkpoint = (std::filesystem::path(name.dir) / tag).string();
  const Json client_state = engine_->load_checkpoint(name.dir, tag);
  warn_about_other_data(client_state, checkpoint);
  best_.load(client_state.find("best"));
  folder_.go_on(engine_->run_id(), step());
  saved_step_ = step();
  kept_ = checkpoint;
  print_line("resumed from " + checkpoint + " at step " + grouped(step()));
  if (step() >= *run_.steps) {
    log::warning(checkpoint + ": is at step " + grouped(step()) + ", and steps is " + grouped(*run_.steps) +
                 ", so there is nothing to train. Steps count from the beginning of the run: give a larger --steps.");
  }
}

std::string TrainingRun::what_is_kept() const {
  if (!kept_.empty()) return continue_with(kept_);
  return run_.save_dir.empty() ? "Nothing was saved: --save is not given." : "No checkpoint had been saved yet.";
}

/// Waits for the checkpoint that is being written for as long as it gets on within `patience`.
bool TrainingRun::saved_in_background(std::chrono::milliseconds patience) const {
  SaveProgress progress;
  while (!engine_->saved_within(patience)) {
    if (patience.count() == 0 || !progress.got_on()) return false;
  }
  return true;
}

/// A part of the run that a signal bounds. `what` says where it was, "in step 7, which did not end"; it is said once a
/// checkpoint that is being written in the background has had its time: that the run hangs is no reason to lose it.
Interrupt::Part TrainingRun::part(Kind kind, const std::string& what) {
  const auto patience = kind == Kind::kSave ? std::chrono::milliseconds(0) : interrupt_.bound(Kind::kSave).time;
  return {interrupt_, kind, [this, what, patience](const std::string& bound) {
            const bool saved = !saving_.empty() && saved_in_background(patience);
            log::warning("interrupted " + what + " within " + bound + ". " +
                         (saved ? continue_with(saving_) : what_is_kept()));
          }};
}

/// A step after a signal may fail because another rank has ended by then.
bool TrainingRun::train_step_or_leave() {
  const Interrupt::Part bounded = part(Kind::kStep, "in step " + grouped(step() + 1) + ", which did not end");
  try {
    train_step();
    return true;
  } catch (const RuntimeFault& error) {
    if (member_ || !Interrupt::requested() || engine_->world_size() == 1) throw;
    engine_->tell_failure("interrupted.");
    log::warning("interrupted in step " + grouped(step() + 1) + ", which failed: " + error.what() + "\n" +
                 what_is_kept());
    return false;
  }
}

Batch TrainingRun::next_batch(std::int64_t micro_step) {
  if (member_ && member_->is_over()) throw PeerFault("the step has no future: a process of the run is gone.");
  return micro_batch(*engine_, data_, order_, micro_step);
}

void TrainingRun::train_step() {
  if (!report_.empty()) before_step_ = engine_->comms_log().traffic();
  std::int64_t micro_step = 0;
  const auto begun = std::chrono::steady_clock::now();
  const double loss = engine_->train_batch([&] { return next_batch(micro_step++); });
  if (!report_.empty()) after_step_ = engine_->comms_log().traffic();
  pace_->step_took(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  if (steps_here_++ == 0) first_loss_ = loss;
  if (member_ && speaks_) member_->folder().tell_step({member_->world().generation, step(), now()});
}

void TrainingRun::report_step(double seconds_since_begin) {
  const StepFacts facts{.step = step(),
                        .steps = *run_.steps,
                        .loss = engine_->mean_loss(),
                        .lr = engine_->last_step().lr,
                        .samples_per_second = pace_->samples_per_second(),
                        .tokens_per_second = pace_->tokens_per_second(),
                        .seconds_left = pace_->seconds_for(*run_.steps - step())};
  if (due(step(), loaded_.config.report.steps_per_print.value_or(0))) print_line(plain_text(facts));
  const auto forecast = forecast_.after_step(facts, seconds_since_begin);
  if (forecast && (!member_ || member_->world().generation == 1)) print_line(*forecast);
  bar_.show(facts);
}

void TrainingRun::evaluate() {
  if (!eval_data_ || evaluated_step_ == step()) return;
  Interrupt::Part bounded =
      part(Kind::kStep, "in the evaluation after step " + grouped(step()) + ", which did not get on");
  Evaluation evaluation(*eval_data_, loaded_.config.batch.micro_batch_size, engine_->rank(), engine_->world_size());
  const double loss = engine_->eval_batch(
      [&] {
        // They must leave together.
        if (engine_->any_rank(Interrupt::requested())) throw Interrupted{};
        bounded.got_on();
        return evaluation.next();
      },
      evaluation.own_batches());
  evaluated_step_ = step();
  print_line("step=" + std::to_string(step()) + ", eval_loss=" + fixed(loss, 4) + " over " +
             grouped(evaluation.samples()) + " samples");
  if (!best_.take(step(), loss) || !run_.keep_best) return;
  save();
  mark_best();  // where this step was saved before
}

/// Names the checkpoint of the lowest evaluation loss once it is complete.
void TrainingRun::mark_best() {
  const std::filesystem::path checkpoint = kept_;
  const bool is_best = run_.keep_best && saving_.empty() && best_.step() && saved_step_ == best_.step();
  std::error_code error;
  if (is_best && std::filesystem::equivalent(checkpoint.parent_path(), run_.save_dir, error)) {
    folder_.mark_best(checkpoint.filename().string());
  }
}

std::string TrainingRun::best_text() const {
  return "step " + grouped(*best_.step()) + " (eval_loss " + fixed(best_.loss(), 4) + ")";
}

void TrainingRun::save() {
  if (run_.save_dir.empty() || saved_step_ == step()) return;
  const Interrupt::Part bounded =
      part(Kind::kSave, "in the save after step " + grouped(step()) + ", which did not get on");
  Json client_state = Json::object();
  client_state["data"] = data_identity();
  client_state["restarting_parents"] = folder_.restarting_parents();
  client_state["best"] = best_.json();
  finish_saving();
  saving_ = (std::filesystem::path(run_.save_dir) / engine_->save_checkpoint(run_.save_dir, "", client_state)).string();
  saved_step_ = step();
  note_saved();
}

/// Says so once a checkpoint is written, perhaps long after save().
void TrainingRun::note_saved() {
  if (saving_.empty() || engine_->saving()) return;
  const Interrupt::Part bounded = part(Kind::kSave, "as older checkpoints were removed, which did not get on");
  engine_->finish_saving();
  kept_ = std::exchange(saving_, "");
  if (member_ && speaks_) {
    const std::filesystem::path checkpoint = kept_;
    cli::note_saved(member_->folder(), *saved_step_,
                    {checkpoint.parent_path().string(), checkpoint.filename().string()});
  }
  mark_best();
  folder_.add(std::filesystem::path(kept_).filename().string());
  print_line("saved " + kept_);
}

void TrainingRun::finish_saving() {
  const Interrupt::Part bounded = part(Kind::kSave, "in the save of '" + saving_ + "', which did not get on");
  engine_->finish_saving();
  note_saved();
}

int TrainingRun::interrupted() {
  if (snapshots_ && restart_) snapshots_->take(*engine_, kept_with_snapshot());
  if (steps_here_ > 0) save();
  finish_saving();
  if (member_) print_line(account_.text(member_->losses(), now()));
  close_run();
  log::info(interrupted_text({step(), *run_.steps, run_.save_dir, !run_.eval_data_paths.empty()}));
  return static_cast<int>(ExitCode::kInterrupted);
}

void TrainingRun::finish(double seconds) {
  evaluate();
  save();
  finish_saving();
  ProgressBar::clear();
  if (steps_here_ > 0) {
    print_line("trained " + counted(steps_here_, "step") + " in " + duration_text(seconds) + ": loss " +
               fixed(first_loss_, 4) + " -> " + fixed(engine_->mean_loss(), 4));
  }
  if (out_of_patience()) {
    print_line("stopped after step " + grouped(step()) + ": " + counted(best_.since(), "evaluation") +
               " in a row had no lower loss" + (best_.step() ? " than that after " + best_text() : "") +
               " (capstan.run.patience)");
  }
  if (run_.keep_best && best_.step()) print_line("best: " + best_text() + ", " + run_.save_dir + ":best");
  if (member_) print_line(account_.text(member_->losses(), now()));
  close_run();
  if (restart_ && loaded_.communicator->local_rank() == 0) restart_->remove();
}

/// Hands on what monitors and the report still have to say.
void TrainingRun::close_run() {
  const Interrupt::Part bounded =
      part(Kind::kStep, "after step " + grouped(step()) + ", as monitors and report were closed, which did not end");
  engine_->flush_monitors();
  if (steps_here_ > 0) report_comms();
}

void TrainingRun::report_comms() {
  if (report_.empty() && !loaded_.config.comms_logger.enabled) return;
  if (engine_->world_size() == 1) return print_line("comms: one process exchanges nothing");
  if (!report_.empty()) print_line(traffic_text(engine_->comms_log().traffic(), before_step_, after_step_));
  // All ranks call it, because the comparison is a collective.
  print_line(engine_->comms_summary(report_ == "stragglers").text());
}

/// All members have ended this step: the last of this generation. Nothing is lost.
std::optional<int> TrainingRun::pause() {
  const bool leaves = Interrupt::requested();
  snapshots_->take(*engine_, kept_with_snapshot());
  engine_->flush_monitors();
  if (member_->pause(leaves) == ElasticMember::Pause::kEnd) return interrupted();
  if (!leaves) return std::nullopt;
  log::info("interrupted after step " + grouped(step()) + " of " + grouped(*run_.steps) +
            ": this process leaves, and the others go on.");
  return static_cast<int>(ExitCode::kInterrupted);
}

std::optional<int> TrainingRun::save_only() {
  if (step() > 0) save();
  finish_saving();
  log::info("the run ends after step " + grouped(step()) + " of " + grouped(*run_.steps) + ". " + what_is_kept());
  return member_->world().end_code;
}

std::optional<int> TrainingRun::run() {
  if (!snapshots_) account_.begun = now();
  const auto seconds = [&] { return now() - account_.begun; };
  try {
    while (step() < *run_.steps && !out_of_patience()) {
      if (stop_requested()) return member_ ? pause() : interrupted();
      if (asked_to_stop()) engine_->ask_to_stop();
      if (!train_step_or_leave()) return static_cast<int>(ExitCode::kInterrupted);
      report_step(seconds());
      if (engine_->trial_ended()) return 0;
      note_saved();
      if (due(step(), run_.eval_every)) evaluate();
      if (due(step(), run_.save_every)) save();
      const auto kept = [this] { return kept_with_snapshot(); };
      if (snapshots_ && snapshots_->after_step(*engine_, kept) && restart_) restart_->touch();
    }
    if (stop_requested() && !member_) return interrupted();
    finish(seconds());
  } catch (const Interrupted&) {
    return member_ ? pause() : interrupted();
  }
  return 0;
}

int train_alone(const TrainArguments& arguments, Interrupt& interrupt) {
  const LoadedConfig loaded = load_run(arguments.config, Purpose::kTraining);
  return run_as_one(loaded, [&] {
    check_run(loaded.config.run);
    const auto restart = ElasticRestart::of(loaded, config_text(arguments.config));
    return *TrainingRun(arguments, loaded, build_model(loaded), interrupt, nullptr, restart ? &*restart : nullptr)
                .run();
  });
}

}  // namespace

int train(const TrainArguments& arguments) {
  if (auto member = ElasticMember::from_environment()) {
    Interrupt interrupt(/*speaks=*/false);
    ElasticTraining training(arguments, *member, interrupt);
    return training.run([&](const LoadedConfig& loaded, bool only_to_save) {
      check_run(loaded.config.run);
      Model model = build_model(loaded);
      if (member->world().generation == 1) training.check_same(loaded, model);
      TrainingRun run(arguments, loaded, std::move(model), interrupt, &*member, nullptr);
      return only_to_save ? run.save_only() : run.run();
    });
  }
  Interrupt interrupt(/*speaks=*/read_rendezvous(process_environment()).rank == 0);
  return train_alone(arguments, interrupt);
}

}  // namespace capstan::cli
