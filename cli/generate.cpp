#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/prompts.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/generation.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_model.hpp"

namespace capstan::cli {
namespace {

/// Facts of the model that bound and end its texts.
struct Vocabulary {
  std::int64_t size = 0;
  std::vector<std::int64_t> stop;
};

Vocabulary vocabulary_of(const Model& model) {
  const Json facts = model.describe();
  Vocabulary vocabulary;
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) vocabulary.size = size->as_integer();
  const Json* hf = facts.find("hf");
  const Json* config = hf ? hf->find("config") : nullptr;
  const Json* end = config ? config->find("eos_token_id") : nullptr;
  if (end && end->is_integer()) vocabulary.stop.push_back(end->as_integer());
  if (end && end->is_array()) {
    for (const Json& id : end->as_array()) {
      if (id.is_integer()) vocabulary.stop.push_back(id.as_integer());
    }
  }
  return vocabulary;
}

TokenSampling sampling_of(const GenerateArguments& arguments, std::uint64_t seed) {
  return {arguments.temperature, arguments.top_k, arguments.top_p, seed};
}

void check_options(const GenerateArguments& arguments) {
  if (arguments.checkpoint.empty() && arguments.init_from.empty()) {
    throw UsageError("generate: no weights are named. Give --checkpoint DIR[:TAG], or --init-from PATH.");
  }
  if (arguments.prompt.empty() && arguments.ids.empty() && arguments.prompts.empty()) {
    throw UsageError("generate: no prompt is given. Give --prompt TEXT, --ids ID,ID,... or --prompts FILE.");
  }
  if (!std::isfinite(arguments.temperature) || arguments.temperature < 0) {
    throw UsageError("--temperature: must be 0 or more.");
  }
  if (!(arguments.top_p > 0 && arguments.top_p <= 1)) throw UsageError("--top-p: must be above 0 and at most 1.");
  if (arguments.top_k < 0) throw UsageError("--top-k: must be 0, for all tokens, or more.");
  if (arguments.temperature == 0 && (arguments.top_k != 0 || arguments.top_p != 1)) {
    throw UsageError(
        "--top-k and --top-p choose what is drawn from, and --temperature 0 draws nothing. Give --temperature, 1 for "
        "instance.");
  }
}

int generate_loaded(const GenerateArguments& arguments, const std::vector<Prompt>& prompts,
                    const LoadedConfig& loaded) {
  Model model = build_model(loaded);
  const Vocabulary vocabulary = vocabulary_of(model);
  check_prompts(prompts, vocabulary.size);
  const DecodeFunctions functions = model.decode_functions();
  Engine engine(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
  if (arguments.init_from.empty()) {
    const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
    engine.load_checkpoint(name.dir, tag_named(name.dir, name.tag));
  } else {
    engine.load_weights(arguments.init_from);
  }
  const GenerationLimits limits{arguments.max_new,
                                arguments.stop.empty() ? vocabulary.stop : token_ids("--stop", arguments.stop)};
  const TokenSampling sampling = sampling_of(arguments, loaded.config.run.seed);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = generate_tokens(engine, functions, prompts[i].ids, limits, sampling, i);
    if (engine.rank() == 0) print(answer_text(prompts[i], tokens, !arguments.prompts.empty()));
  }
  return 0;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check_options(arguments);
  const std::vector<Prompt> prompts = read_prompts(arguments);
  LoadedConfig loaded = load_run(source_of(arguments.config), Purpose::kEvaluation);
  if (const auto& attention = loaded.config.attention) {
    throw ConfigError(
        attention->where +
        ": its blocks are those of a whole sequence, and a text is continued token by token. Leave sparse "
        "attention out of the configuration for this command.");
  }
  // Nothing is trained: whatever the checkpoint was trained with, its model continues prompts.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  loaded.config.optimizer.reset();
  loaded.config.scheduler.reset();
  loaded.config.optimizer_offload.reset();
  loaded.config.parameter_groups.clear();
  return run_as_one(loaded, [&] { return generate_loaded(arguments, prompts, loaded); });
}

}  // namespace capstan::cli
