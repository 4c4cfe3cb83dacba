#include "core/run/run.hpp"

#include <atomic>
#include <utility>

#include "core/comm/rendezvous.hpp"
#include "core/errors.hpp"
#include "core/run/elastic_training.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_checks.hpp"
#include "core/run/training_run.hpp"

namespace capstan {

struct Run::State {
  State(RunSource source_of_run, RunParts parts_of_program, RunOptions given)
      : source(std::move(source_of_run)), parts(std::move(parts_of_program)), options(std::move(given)) {}

  RunSource source;
  RunParts parts;
  RunOptions options;
  std::optional<Interrupt> interrupt;
  std::optional<LoadedConfig> loaded;
  std::optional<ElasticRestart> restart;
  std::optional<TrainingRun> training;
  bool begun = false;
  int code = 0;

  Interrupt* signals(bool speaks) {
    if (options.handles_signals) interrupt.emplace(speaks);
    return interrupt ? &*interrupt : nullptr;
  }
  void begin_alone();
  void end();
  int train_in(ElasticMember& member);
};

/// The processes of a launcher, which stay what they are.
void Run::State::begin_alone() {
  const Rendezvous rendezvous = options.meeting ? options.meeting() : read_rendezvous(process_environment());
  Interrupt* const interrupts = signals(/*speaks=*/rendezvous.rank == 0);
  ConfigText text;
  const RunSource once{[&] { return text = source.text(); }, source.context};
  loaded = load_run(once, Purpose::kTraining, rendezvous);
  run_as_one(*loaded, [&] {
    check_run(loaded->config, static_cast<bool>(parts.eval_data));
    restart = ElasticRestart::of(*loaded, text);
    training.emplace(parts, options, *loaded,
                     TrainingRun::Places{.interrupt = interrupts, .restart = restart ? &*restart : nullptr});
    return 0;
  });
}

/// The engine is closed, and signals are handled as before the run.
void Run::State::end() {
  if (training) code = training->code();
  training.reset();
  restart.reset();
  interrupt.reset();
}

int Run::State::train_in(ElasticMember& member) {
  static std::atomic<bool> trained = false;
  if (trained.exchange(true)) {
    throw RuntimeFault(
        "train: this process has trained a run of 'capstan launch --elastic', and a launch has one run.");
  }
  Interrupt* const interrupts = signals(/*speaks=*/false);
  ElasticTraining elastic(source, parts, member, interrupts);
  return elastic.run([&](const LoadedConfig& loaded, bool only_to_save) {
    check_run(loaded.config, static_cast<bool>(parts.eval_data));
    TrainingRun::Places places{.interrupt = interrupts, .member = &member};
    if (member.world().generation == 1) {
      places.check = [&](const LoadedConfig& own, const Model& model) { elastic.check_same(own, model); };
    }
    TrainingRun run(parts, options, loaded, std::move(places));
    return only_to_save ? run.save_only() : run.run();
  });
}

Run::Run(RunSource source, RunParts parts, RunOptions options)
    : state_(std::make_unique<State>(std::move(source), std::move(parts), std::move(options))) {
  // A program that brings some of it learns later what else is missing.
  if (!state_->parts.model && !state_->parts.begin && !state_->parts.data) state_->source.context.trains_alone = true;
}

Run::~Run() = default;

int Run::train() {
  if (std::exchange(state_->begun, true)) throw RuntimeFault("train: this run has begun. Make another Run.");
  if (auto member = ElasticMember::from_environment()) return state_->train_in(*member);
  state_->begin_alone();
  const int code = run_as_one(*state_->loaded, [this] { return *state_->training->run(); });
  state_->end();
  return code;
}

std::optional<Batch> Run::next() {
  if (!std::exchange(state_->begun, true)) {
    if (ElasticMember::from_environment()) {
      throw RuntimeFault(
          "next: the processes of 'capstan launch --elastic' change within a step, which is then done again: a loop of "
          "the program's own cannot do that. Call train(), with the step as a function.");
    }
    state_->begin_alone();
  }
  if (!state_->training) return std::nullopt;
  std::optional<Batch> batch;
  run_as_one(*state_->loaded, [&] {
    batch = state_->training->next();
    return 0;
  });
  if (!batch) state_->end();
  return batch;
}

Engine& Run::engine() {
  if (!state_->training) throw RuntimeFault("engine: the run is not under way. Call next() before.");
  return state_->training->engine();
}

int Run::exit_code() const { return state_->code; }

}  // namespace capstan
