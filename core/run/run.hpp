#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/keep/load_options.hpp"
#include "core/run/loaded_config.hpp"
#include "core/run/run_parts.hpp"

namespace capstan {

struct Rendezvous;

struct RunOptions {
  std::string resume;     // a checkpoint, DIR or DIR:TAG; empty: from the start
  std::string init_from;  // a safetensors file or a folder of transformers; empty: the model's own initial values
  /// SIGINT and SIGTERM end the run after the step under way, which is saved; a second one ends the process at once.
  /// The handlers are those of the Run while it trains. False: signals are the program's business.
  bool handles_signals = true;
  /// Where the processes meet; empty: where the environment of their launcher says.
  std::function<Rendezvous()> meeting;
  LoadOptions load;  // of the checkpoint `resume`
};

/// A training as `capstan train` does it: the order of samples, evaluations, saves (capstan.run), signals, resume, and
/// recovery from lost processes, with the same bits. Under `capstan launch --elastic` train() trains on when processes
/// are lost or come; under torchrun, with elasticity in the configuration, processes that it starts anew go on from the
/// others' snapshots.
///
///   capstan::RunParts parts;
///   parts.model = [](const capstan::LoadedConfig&) { return capstan::wrap_module(std::make_shared<Net>()); };
///   return capstan::Run(capstan::RunSource::file("ds_config.json"), parts).train();
///
/// One thread uses it, and a process has one at a time.
class Run {
 public:
  explicit Run(RunSource source, RunParts parts = {}, RunOptions options = {});
  ~Run();
  Run(const Run&) = delete;

  /// Trains until the run ends. Returns the exit code of the process: 0, or 130 where a signal has ended the run. Once.
  /// Throws ConfigError, PluginError, RuntimeFault, and what the functions of the program throw; the other ranks are
  /// told. Under `capstan launch --elastic` it may end the process: where another process takes its place.
  int train();

  /// The same run as a loop of the program's own, whose turn is one micro-batch; nothing at its end:
  ///
  ///   while (std::optional<capstan::Batch> batch = run.next()) {
  ///     at::Tensor loss = run.engine().forward(*batch);
  ///     run.engine().backward(loss);
  ///     run.engine().step();
  ///   }
  ///   return run.exit_code();
  ///
  /// Evaluations, saves and signals come between two steps. Throws as train(), and RuntimeFault where the step before
  /// was not ended, and under `capstan launch --elastic`: a step that has lost a process is done again, which a loop of
  /// the program's own cannot do. train() with RunParts::step can.
  std::optional<Batch> next();
  /// The engine of the run that next() has begun, until it gives nothing. Throws RuntimeFault before and after.
  Engine& engine();
  /// What train() would have returned, after next() has given nothing.
  int exit_code() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace capstan
