#include <optional>

#include "cli/checkpoint_name.hpp"
#include "cli/commands.hpp"
#include "cli/numbers.hpp"
#include "cli/program.hpp"
#include "cli/run_setup.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

int evaluate_loaded(const EvalArguments& arguments, const LoadedConfig& loaded) {
  Model model = build_model(loaded);
  const Dataset data = open_data(loaded.config.run.eval_data_paths, "capstan.data.eval_path", loaded, model);
  Engine engine(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
  if (arguments.init_from.empty()) {
    const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
    engine.load_checkpoint(name.dir, name.tag);
  } else {
    engine.load_weights(arguments.init_from);
  }
  Evaluation evaluation(data, loaded.config.batch.micro_batch_size, engine.rank(), engine.world_size());
  const double loss = engine.eval_batch([&] { return evaluation.next(); }, evaluation.own_batches());
  if (engine.rank() > 0) return 0;
  print("step=" + std::to_string(engine.progress().global_steps) + ", eval_loss=" + fixed(loss, 6) + " over " +
        grouped(evaluation.samples()) + " samples of " + grouped(data.sequence_length()) + " tokens\n");
  return 0;
}

}  // namespace

int evaluate(const EvalArguments& arguments) {
  if (arguments.checkpoint.empty() && arguments.init_from.empty()) {
    throw ConfigError("eval: no weights are named. Give --checkpoint DIR[:TAG], or --init-from model.safetensors.");
  }
  LoadedConfig loaded = load_run(arguments.config, Purpose::kEvaluation);
  // An evaluation is no part of the run: it leaves the run's metrics alone.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  return run_as_one(loaded, [&] { return evaluate_loaded(arguments, loaded); });
}

}  // namespace capstan::cli
