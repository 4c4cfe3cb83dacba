#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/engine/engine.hpp"
#include "core/model/model.hpp"
#include "core/run/loaded_config.hpp"
#include "core/run/pace.hpp"
#include "core/run/run_data.hpp"

namespace capstan {

/// Makes the engine of a run of a model.
using MakeEngine = std::function<Engine(Model)>;

/// What the program of a Run brings. An empty function stands for what `capstan train` does. All of them are called by
/// the thread that calls the Run; in an elastic launch, where processes change, those of the first two groups again for
/// each generation. An exception that one of them throws ends the run.
struct RunParts {
  /// The model; empty: that of capstan.model. Its initial values are drawn from the host's generator, which is seeded
  /// with capstan.run.seed before. At ZeRO stage 3 it may be called twice; see without_values().
  std::function<Model(const LoadedConfig& loaded)> model;
  /// The data; empty: capstan.data.path, and capstan.data.eval_path.
  std::function<RunData(const LoadedConfig&loaded, const Model&model)> data, eval_data;

  /// For a program that holds the engine itself: makes it with `make`, and gives it up in `end`.
  std::function<Engine&(const LoadedConfig& loaded, const MakeEngine& make)> begin;
  std::function<void()> end;

  /// One whole step of engine.config().batch.gradient_accumulation_steps micro-batches, each from `next`; returns the
  /// mean loss. Empty: Engine::train_batch().
  std::function<double(Engine& engine, const NextBatch& next)> step;
  /// The mean loss of an evaluation's micro-batches. Empty: Engine::eval_batch().
  std::function<double(Engine& engine, const NextBatch& next, std::int64_t micro_batches)> evaluate;

  /// On rank 0, before the engine of the run's first generation is made.
  std::function<void(const LoadedConfig& loaded, const Model& model)> starts;
  /// On rank 0: a line of the run, without its end. Empty: to standard output.
  std::function<void(std::string_view line)> print;
  /// On rank 0, after each step.
  std::function<void(const StepProgress& facts)> progress;
  /// On all ranks, at the end of a run that has trained. Empty: prints what comms_logger asks for.
  std::function<void(Engine& engine, const LoadedConfig& loaded)> report;
};

}  // namespace capstan
