#include "core/run/training_run.hpp"

#include <string>
#include <utility>

#include "core/comm/communicator.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/config/tools/config_dump.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/run/run_checks.hpp"
#include "core/run/run_model.hpp"
#include "core/standard_output.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

/// Ends an evaluation that a signal interrupts.
struct Interrupted {};

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

RunData data_at(const std::vector<std::string>& paths, const char* key, const LoadedConfig& loaded,
                const Model& model) {
  return run_data(std::make_shared<const Dataset>(open_data(paths, key, loaded, model)));
}

}  // namespace

TrainingRun::TrainingRun(const RunParts& parts, const RunOptions& options, const LoadedConfig& loaded, Places places)
    : parts_(parts),
      options_(options),
      loaded_(loaded),
      interrupt_(places.interrupt),
      member_(places.member),
      restart_(places.restart),
      check_(std::move(places.check)),
      run_(loaded.config.run),
      folder_(loaded),
      speaks_(loaded.communicator->rank() == 0) {
  if (parts_.begin) {
    seed_values(loaded);
    Engine& engine = parts_.begin(loaded, [this](Model model) {
      seed_rank(loaded_);
      return make_engine(std::move(model));
    });
    program_engine_ = {&engine, EndOfProgram{&parts_}};
    engine_ = &engine;
  } else {
    own_engine_.emplace(make_engine(build_model(parts_, loaded)));
    engine_ = &*own_engine_;
  }
  engine_->start_sampler(data_.samples, data_.fingerprint);
  check_passes(loaded.config, data_.samples);
  engine_->set_report_output([this](std::string_view text) { print_line(text); });
  if (!member_ && !restart_) {
    begin();
  } else if (!go_on()) {
    if (!saved_step_) {
      folder_.refuse_other_run(options_.resume);
      begin();
    }
    account_.begun = now();
    take_first_snapshot();
  } else if (member_ && member_->world().spans_hosts() && member_->world().end.empty()) {
    // Hosts that have joined have nothing of the snapshot that the others have loaded.
    take_first_snapshot();
  }
  if (snapshots_ && speaks_) write_elastic_metrics();
  if (loaded.config.report.dump_state) print_line(engine_->state_dump() + "\n" + config_dump(loaded.config));
  pace_.emplace(loaded.config.batch.train_batch_size, data_.sequence_length);
  if (!snapshots_) account_.begun = now();
}

Engine TrainingRun::make_engine(Model model) {
  if (check_) check_(loaded_, model);
  const auto opened = [&](const auto& own, const std::vector<std::string>& paths, const char* key) {
    return own ? own(loaded_, model) : data_at(paths, key, loaded_, model);
  };
  data_ = opened(parts_.data, run_.data_paths, "capstan.data.path");
  if (data_.samples < 1) throw RuntimeFault("the data of the run has no samples.");
  order_.emplace(data_.samples, run_.seed, run_.shuffle);
  if (parts_.eval_data || !run_.eval_data_paths.empty()) {
    eval_data_ = opened(parts_.eval_data, run_.eval_data_paths, "capstan.data.eval_path");
  }
  if (run_.sample.every > 0) {
    const bool own_weights = parts_.model || !options_.init_from.empty();
    const std::string weights = own_weights ? options_.init_from : initial_weights(loaded_.config);
    samples_.emplace(loaded_.config, model, WeightsOfRun{options_.resume, weights});
  }
  if (!member_ && !restart_) folder_.refuse_other_run(options_.resume);
  if (speaks_ && parts_.starts && (!member_ || member_->world().generation == 1)) parts_.starts(loaded_, model);
  return Engine(std::move(model), loaded_.config, loaded_.plugins, loaded_.communicator);
}

TrainingRun::~TrainingRun() {
  step_part_.reset();
  Part bounded;
  if (interrupt_) {
    bounded.emplace(*interrupt_, Kind::kStep, [this](const std::string& bound) {
      log::warning("interrupted as the engine was closed, which did not end within " + bound + ". " + what_is_kept());
    });
  }
  own_engine_.reset();
  program_engine_.reset();
}

void TrainingRun::EndOfProgram::operator()(Engine*) const {
  if (!parts->end) return;
  try {
    parts->end();
  } catch (const std::exception& error) {
    log::error(std::string("the engine of the run was not closed: ") + error.what());
  }
}

double TrainingRun::now() const {
  if (member_) return member_->folder().seconds();
  // Seconds by a clock of all processes of the run: of those that torchrun starts, that of the day.
  using Day = std::chrono::duration<double>;
  return restart_ ? Day(std::chrono::system_clock::now().time_since_epoch()).count() : steady_seconds();
}

void TrainingRun::print_line(std::string_view text) const {
  if (!speaks_) return;
  parts_.print ? parts_.print(text) : write_to_standard_output(text);
}

/// A part of the run that a signal bounds.
TrainingRun::Part TrainingRun::part(Kind kind, const std::string& what) {
  if (!interrupt_) return std::nullopt;
  return Part(std::in_place, *interrupt_, kind, unfinished(kind, what));
}

/// A step after a signal may fail because another rank has ended by then.
bool TrainingRun::train_step_or_leave() {
  const Part bounded = part(Kind::kStep, "in step " + grouped(step() + 1) + ", which did not end");
  try {
    train_step();
    return true;
  } catch (const RuntimeFault& error) {
    if (member_ || !signalled() || engine_->world_size() == 1) throw;
    engine_->tell_failure("interrupted.");
    log::warning("interrupted in step " + grouped(step() + 1) + ", which failed: " + error.what() + "\n" +
                 what_is_kept());
    return false;
  }
}

Batch TrainingRun::next_batch(std::int64_t micro_step) {
  if (member_ && member_->is_over()) throw PeerFault("the step has no future: a process of the run is gone.");
  return data_.read(samples_of(*engine_, *order_, micro_step));
}

void TrainingRun::train_step() {
  std::int64_t micro_step = 0;
  const std::int64_t before = step();
  const NextBatch next = [&] { return next_batch(micro_step++); };
  const auto begun = std::chrono::steady_clock::now();
  const double loss = parts_.step ? parts_.step(*engine_, next) : engine_->train_batch(next);
  if (step() != before + 1) {
    throw RuntimeFault("the program's step has not ended step " + grouped(before + 1) +
                       ": it must take gradient_accumulation_steps micro-batches, and call backward() and step() for "
                       "each.");
  }
  step_took(seconds_since(begun), loss);
}

void TrainingRun::step_took(double seconds, double loss) {
  pace_->step_took(seconds);
  if (steps_here_++ == 0) first_loss_ = loss;
  if (member_ && speaks_) {
    member_->folder().tell_step({member_->world().generation, step(), now(), snapshots_->kept_step()});
  }
}

void TrainingRun::report_step(double seconds_since_begin) {
  const StepProgress facts{.step = step(),
                           .steps = *run_.steps,
                           .loss = engine_->mean_loss(),
                           .lr = engine_->last_step().lr,
                           .samples_per_second = pace_->samples_per_second(),
                           .tokens_per_second = pace_->tokens_per_second(),
                           .seconds_left = pace_->seconds_for(*run_.steps - step())};
  if (due(step(), loaded_.config.report.steps_per_print.value_or(0))) print_line(plain_text(facts));
  const auto forecast = forecast_.after_step(facts, seconds_since_begin);
  if (forecast && (!member_ || member_->world().generation == 1)) print_line(*forecast);
  if (speaks_ && parts_.progress) parts_.progress(facts);
}

void TrainingRun::evaluate() {
  if (!eval_data_ || evaluated_step_ == step()) return;
  Part bounded = part(Kind::kStep, "in the evaluation after step " + grouped(step()) + ", which did not get on");
  Evaluation evaluation(*eval_data_, loaded_.config.batch.micro_batch_size, engine_->rank(), engine_->world_size());
  const NextBatch next = [&] {
    // They must leave together.
    if (engine_->any_rank(signalled())) throw Interrupted{};
    if (bounded) bounded->got_on();
    return evaluation.next();
  };
  const std::int64_t batches = evaluation.own_batches();
  const double loss = parts_.evaluate ? parts_.evaluate(*engine_, next, batches) : engine_->eval_batch(next, batches);
  evaluated_step_ = step();
  print_line("step=" + std::to_string(step()) + ", eval_loss=" + fixed(loss, 4) + " over " +
             grouped(evaluation.samples()) + " samples");
  if (!best_.take(step(), loss) || !run_.keep_best) return;
  save();
  mark_best();  // where this step was saved before
}

void TrainingRun::write_samples() {
  if (!samples_ || sampled_step_ == step()) return;
  Part bounded = part(Kind::kStep, "in the samples after step " + grouped(step()) + ", which did not get on");
  sampled_step_ = step();
  const auto got_on = [&] {
    // They must leave together.
    if (engine_->any_rank(signalled())) throw Interrupted{};
    if (bounded) bounded->got_on();
  };
  try {
    samples_->write(*engine_, got_on, [&](const SampleText& sample) {
      const std::string number = std::to_string(sample.number);
      engine_->write_text("Train/Samples/generated_" + number, sample.prompt, sample.text);
      print_line("step=" + std::to_string(step()) + ", sample " + number + ": " + Json(sample.prompt).dump() + " -> " +
                 Json(sample.text).dump());
    });
  } catch (const LogitsFault& fault) {
    if (speaks_)
      log::warning("capstan.run.sample_every: no sample after step " + grouped(step()) + ": " + fault.what());
  }
}

int TrainingRun::interrupted() {
  if (snapshots_ && restart_) snapshots_->take(*engine_, kept_with_snapshot());
  if (steps_here_ > 0) save();
  finish_saving();
  if (member_) print_line(account_.text(member_->losses(), now()));
  close_run();
  log::info(interrupted_text({step(), *run_.steps, run_.save_dir, eval_data_.has_value()}));
  return static_cast<int>(ExitCode::kInterrupted);
}

void TrainingRun::finish() {
  const double seconds = now() - account_.begun;
  evaluate();
  if (steps_here_ > 0) write_samples();
  save();
  finish_saving();
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

/// Hands on what monitors and the report have left.
void TrainingRun::close_run() {
  const Part bounded =
      part(Kind::kStep, "after step " + grouped(step()) + ", as monitors and report were closed, which did not end");
  engine_->flush_monitors();
  if (steps_here_ > 0) parts_.report ? parts_.report(*engine_, loaded_) : report_comms();
}

void TrainingRun::report_comms() {
  if (!loaded_.config.comms_logger.enabled) return;
  if (engine_->world_size() == 1) return print_line("comms: one process exchanges nothing");
  print_line(engine_->comms_summary().text());
}

/// All members have ended this step: the last of this generation. Nothing is lost.
std::optional<int> TrainingRun::pause() {
  const bool leaves = signalled();
  snapshots_->take(*engine_, kept_with_snapshot());
  engine_->flush_monitors();
  if (member_->pause(leaves) == ElasticMember::Pause::kEnd) return interrupted();
  if (!leaves) return std::nullopt;
  log::info("interrupted after step " + grouped(step()) + " of " + grouped(*run_.steps) +
            ": this process leaves, and the others go on.");
  return static_cast<int>(ExitCode::kInterrupted);
}

void TrainingRun::end(std::optional<int> code) {
  over_ = true;
  code_ = code;
}

/// Evaluations leave `run` where a signal interrupts them.
template <class Do>
void TrainingRun::unless_interrupted(const Do& run) {
  try {
    run();
  } catch (const Interrupted&) {
    end(member_ ? pause() : interrupted());
  }
}

/// Whether another step is to be trained. Otherwise the run, or this generation of it, has ended.
bool TrainingRun::begin_step() {
  if (step() == 0 && (!member_ || generation() == 1)) unless_interrupted([this] { write_samples(); });
  if (over_) return false;
  const bool trained = step() >= *run_.steps || out_of_patience();
  if (stop_requested() && !(trained && member_)) {
    end(member_ ? pause() : interrupted());
  } else if (trained) {
    unless_interrupted([this] {
      finish();
      end(0);
    });
  } else if (asked_to_stop()) {
    engine_->ask_to_stop();
  }
  return !over_;
}

/// What follows a step that has been trained.
void TrainingRun::end_step() {
  report_step(now() - account_.begun);
  if (engine_->trial_ended()) return end(0);
  note_saved();
  unless_interrupted([this] {
    if (due(step(), run_.eval_every)) evaluate();
    if (due(step(), run_.sample.every)) write_samples();
    if (due(step(), run_.save_every)) save();
    const auto kept = [this] { return kept_with_snapshot(); };
    if (snapshots_ && snapshots_->after_step(*engine_, kept) && restart_) restart_->touch();
  });
}

std::optional<int> TrainingRun::run() {
  while (begin_step()) {
    if (!train_step_or_leave()) return static_cast<int>(ExitCode::kInterrupted);
    end_step();
    if (over_) break;
  }
  return code_;
}

std::optional<Batch> TrainingRun::next() {
  if (over_) return std::nullopt;
  const bool whole = micro_step_ == loaded_.config.batch.gradient_accumulation_steps;
  if (step_begun_ && whole) {
    if (step() != *step_begun_ + 1) {
      throw RuntimeFault("next: step " + grouped(*step_begun_ + 1) + " has had its " +
                         counted(micro_step_, "micro-batch", "micro-batches") +
                         ", and was not ended: call engine.backward(loss) and engine.step() for each.");
    }
    step_took(seconds_since(begun_), engine_->mean_loss());
    step_part_.reset();
    step_begun_.reset();
    end_step();
    if (over_) return std::nullopt;
  }
  if (!step_begun_) {
    if (!begin_step()) return std::nullopt;
    step_begun_ = step();
    micro_step_ = 0;
    begun_ = std::chrono::steady_clock::now();
    const std::string what = "in step " + grouped(step() + 1) + ", which did not end";
    if (interrupt_) step_part_.emplace(*interrupt_, Kind::kStep, unfinished(Kind::kStep, what));
  }
  return next_batch(micro_step_++);
}

}  // namespace capstan
