#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/run/best_evaluation.hpp"
#include "core/run/elastic_account.hpp"
#include "core/run/elastic_member.hpp"
#include "core/run/elastic_restart.hpp"
#include "core/run/elastic_snapshots.hpp"
#include "core/run/interrupt.hpp"
#include "core/run/run.hpp"
#include "core/run/sample_texts.hpp"
#include "core/run/save_folder.hpp"

namespace capstan {

struct CheckpointName;

/// A training from the first step of this process to the last, in one generation where it is elastic.
class TrainingRun {
 public:
  struct Places {
    Interrupt* interrupt = nullptr;                                // null: signals are the program's business
    ElasticMember* member = nullptr;                               // this process as one of an elastic launch
    const ElasticRestart* restart = nullptr;                       // as one that torchrun starts anew
    std::function<void(const LoadedConfig&, const Model&)> check;  // before the engine is made
  };
  TrainingRun(const RunParts& parts, const RunOptions& options, const LoadedConfig& loaded, Places places);
  /// The engine waits for copies to other hosts that are under way. Where a host is gone and the launcher that would
  /// end this process is gone as well, nothing else bounds that wait.
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;

  /// The exit code; nothing where an elastic run goes on with other processes.
  std::optional<int> run();
  /// Saves what an elastic run has come to, by one process alone.
  std::optional<int> save_only();
  /// Run::next().
  std::optional<Batch> next();
  Engine& engine() { return *engine_; }
  /// The exit code after next() has given nothing.
  int code() const { return code_.value_or(0); }

 private:
  using Kind = Interrupt::Kind;
  using Part = std::optional<Interrupt::Part>;

  /// Lets the program give its engine up, also where this object is not made to its end.
  struct EndOfProgram {
    const RunParts* parts;
    void operator()(Engine* engine) const;
  };

  Engine make_engine(Model model);
  std::string given_weights() const;
  void begin();
  bool go_on();
  bool go_on_from_disk(bool has_snapshot);
  std::int64_t generation() const { return member_ ? member_->world().generation : restart_->generation(); }
  void take_first_snapshot();
  Json kept_with_snapshot() const;
  std::optional<int> pause();
  void write_elastic_metrics();
  void print_line(std::string_view text) const;

  /// On all ranks alike: a single process stops at once, several after the step in which they agreed.
  bool stop_requested() const { return engine_->world_size() == 1 ? asked_to_stop() : engine_->stop_agreed(); }
  bool signalled() const { return interrupt_ && Interrupt::requested(); }
  bool asked_to_stop() const { return signalled() || (member_ && member_->is_to_pause()); }
  std::int64_t step() const { return engine_->progress().global_steps; }
  double now() const;

  void resume(const CheckpointName& name, LoadOptions load = {});
  void take_teacher();
  Batch next_batch(std::int64_t micro_step);
  Json data_identity() const;
  void warn_about_other_data(const Json& client_state, const std::string& checkpoint) const;

  bool begin_step();
  void train_step();
  bool train_step_or_leave();
  void step_took(double seconds, double loss);
  void end_step();
  void end(std::optional<int> code);
  template <class Do>
  void unless_interrupted(const Do& run);
  void report_step(double seconds_since_begin);
  std::string what_is_kept() const;
  bool saved_in_background(std::chrono::milliseconds patience) const;
  Interrupt::Unfinished unfinished(Kind kind, const std::string& what);
  Part part(Kind kind, const std::string& what);
  void evaluate();
  void write_samples();
  void save();
  void note_saved();
  void mark_best();
  bool out_of_patience() const { return run_.patience > 0 && best_.since() >= run_.patience; }
  std::string best_text() const;
  void finish_saving();
  void finish();
  void close_run();
  void report_comms();
  int interrupted();

  const RunParts& parts_;
  const RunOptions& options_;
  const LoadedConfig& loaded_;
  Interrupt* interrupt_;
  ElasticMember* member_;
  const ElasticRestart* restart_;
  std::function<void(const LoadedConfig&, const Model&)> check_;
  const RunConfig& run_;
  SaveFolder folder_;
  RunData data_;
  std::optional<BatchOrder> order_;
  std::optional<RunData> eval_data_;
  std::optional<SampleTexts> samples_;
  bool speaks_;                                           // one rank does, for all
  std::optional<ElasticSnapshots> snapshots_;             // of an elastic run
  std::optional<Engine> own_engine_;                      // where the program does not hold it
  std::unique_ptr<Engine, EndOfProgram> program_engine_;  // where it does
  Engine* engine_ = nullptr;
  std::optional<Pace> pace_;
  Forecast forecast_;
  std::string saving_;  // the checkpoint that is under way; empty: none
  std::string kept_;    // the last that is complete; empty: none
  std::optional<std::int64_t> saved_step_, evaluated_step_, sampled_step_;
  BestEvaluation best_;
  double first_loss_ = 0;
  std::int64_t steps_here_ = 0;
  ElasticAccount account_;
  bool over_ = false;
  std::optional<int> code_;

  // Of next(): the step under way.
  std::int64_t micro_step_ = 0;
  std::optional<std::int64_t> step_begun_;  // the steps done when it began
  std::chrono::steady_clock::time_point begun_{};
  Part step_part_;
};

}  // namespace capstan
