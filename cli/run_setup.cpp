#include "cli/run_setup.hpp"

#include <ATen/Context.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/comm/time_limits.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/deferred_model.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/registry/registry.hpp"

namespace capstan::cli {
namespace {

/// How long rank 0 has to say the same, and the processes to meet before that.
constexpr std::chrono::milliseconds kSaying = std::chrono::seconds(2), kMeeting = std::chrono::seconds(5);

/// Tells the other ranks, and leaves it to rank 0 to say what that has found as well.
void tell_others(Communicator& communicator, const std::string& why) {
  // No other rank says what begins with the name of this one.
  if (why.starts_with("rank ")) return communicator.tell_failure(why);
  if (communicator.tell_failure_as_rank_0(why, kSaying)) another_says_it();
}

/// For a rank that refuses to start.
void meet_and_tell(const Rendezvous& rendezvous, const std::string& why) {
  if (rendezvous.size == 1) return;
  try {
    Communicator::Options options = time_limits(process_environment());
    options.arrival = std::min(options.arrival, kMeeting);
    tell_others(*Communicator::connect(rendezvous, options), why);
  } catch (const std::exception&) {
    // The others are not there: it says itself why it stops.
  }
}

Config load_config_as_one(const ConfigArguments& arguments, const ConfigContext& context, const Rendezvous& rendezvous,
                          PluginIndex& plugins) {
  try {
    return load_config(config_text(arguments), context, plugins);
  } catch (const std::exception& error) {
    meet_and_tell(rendezvous, error.what());
    throw;
  }
}

/// Seeds the generator of the host alone, from which the engine seeds that of its device: at::manual_seed would begin
/// to use every GPU of the machine.
void seed_host(std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

ConfigContext context_of(const ConfigArguments& arguments, Purpose purpose, const Rendezvous& rendezvous,
                         int world_size) {
  ConfigContext context = config_context(arguments);
  context.takes_steps = context.trains_alone = purpose == Purpose::kTraining;
  if (purpose != Purpose::kAnalysis) {
    context.world_size = world_size;
    if (world_size > 1) context.world_size_origin = rendezvous.origin;
  }
  return context;
}

void connect(LoadedConfig& loaded, const Rendezvous& rendezvous, const Communicator::Options& limits) {
  // Before anything else of LibTorch: it looks for devices once, at the first seed.
  load_device(loaded.config, loaded.plugins);
  loaded.communicator = rendezvous.size > 1 ? Communicator::connect(rendezvous, limits) : Communicator::alone();
  for (const std::string& warning : loaded.plugins.warnings()) log::warning(warning);
}

}  // namespace

LoadedConfig load_run(const ConfigArguments& arguments, Purpose purpose) {
  const Rendezvous rendezvous = read_rendezvous(process_environment());
  LoadedConfig loaded;
  note_rank(rendezvous.rank, rendezvous.size);
  if (rendezvous.rank > 0) {
    // What all ranks would say alike is said by rank 0.
    log::set_level(log::Level::kError);
    log::set_speaker("rank " + std::to_string(rendezvous.rank));
  }
  const ConfigContext context = context_of(arguments, purpose, rendezvous, rendezvous.size);
  loaded.config = load_config_as_one(arguments, context, rendezvous, loaded.plugins);
  connect(loaded, rendezvous, time_limits(process_environment()));
  return loaded;
}

LoadedConfig load_run(const ConfigArguments& arguments, Purpose purpose, const RunStart& start) {
  LoadedConfig loaded;
  note_rank(start.rendezvous.rank, start.rendezvous.size);
  const ConfigContext context = context_of(arguments, purpose, start.rendezvous, start.world_size);
  loaded.config = load_config(start.text, context, loaded.plugins);
  connect(loaded, start.rendezvous, start.limits);
  return loaded;
}

int run_as_one(const LoadedConfig& loaded, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    tell_others(*loaded.communicator, error.what());
    throw;
  }
}

Model build_model(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (!config.run.model) {
    throw ConfigError(
        "capstan.model: not given. Name a model with --model, for instance --model gpt:tiny, or in the "
        "configuration: \"capstan\": {\"model\": \"gpt:tiny\"}. 'capstan plugins list' shows the models.");
  }
  seed_host(config.run.seed);
  // Where memory is short, a large block goes back to the system when it is freed: in the heap it would leave a hole.
  if (config.parameter_offload) mallopt(M_MMAP_THRESHOLD, 512 << 10);
  Registry registry(loaded.plugins, config.plugin_sha256);
  const ComponentChoice& choice = *config.run.model;
  const auto build = [&] {
    return Model(registry.create(choice.where, "model", choice.type, choice.params, model_host()));
  };
  Model model = config.zero.stage == 3 ? without_values(build) : build();
  // The same values everywhere; from here on each rank draws dropout of its own.
  if (const int rank = loaded.communicator->rank(); rank > 0) {
    seed_host(config.run.seed + 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(rank));
  }
  return model;
}

std::int64_t sequence_length(const Config& config, const Model& model) {
  if (config.run.sequence_length) return *config.run.sequence_length;
  const Json facts = model.describe();
  const Json* length = facts.find("sequence_length");
  if (length && length->is_integer()) return length->as_integer();
  throw ConfigError("capstan.data.sequence_length: not given, and model '" + model.description() +
                    "' has none of its own. Give --seq.");
}

Dataset open_data(const std::vector<std::string>& paths, const std::string& key, const LoadedConfig& loaded,
                  const Model& model) {
  if (paths.empty()) {
    throw ConfigError(key +
                      ": not given. Name text files or folders, for instance --data corpus/, or in the "
                      "configuration: \"capstan\": {\"data\": {\"path\": \"corpus/\"}}.");
  }
  Dataset::Source source{.paths = paths, .sequence_length = sequence_length(loaded.config, model)};
  const Json facts = model.describe();
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) source.vocabulary = size->as_integer();
  return open_dataset(loaded.config, loaded.plugins, source);
}

Batch micro_batch(Engine& engine, const Dataset& data, const BatchOrder& order, std::int64_t micro_step) {
  const std::int64_t rows = engine.config().batch.micro_batch_size;
  const std::int64_t first = (micro_step * engine.world_size() + engine.rank()) * rows;
  if (!engine.has_sampler()) return ordered_batch(data, order, engine.progress().global_samples + first, rows);
  return data.read(engine.step_samples().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)));
}

Evaluation::Evaluation(const Dataset& data, std::int64_t micro_batch_size, int rank, int ranks)
    : data_(data),
      order_(data.samples(), 0, /*shuffle=*/false),
      rows_(std::min(micro_batch_size, data.samples())),
      batches_((data.samples() + rows_ - 1) / rows_),
      ranks_(ranks),
      at_(rank) {}

Batch Evaluation::next() {
  const bool remains = at_ < batches_;
  const std::int64_t first = remains ? at_ * rows_ : 0;
  const std::int64_t rows = std::min(rows_, data_.samples() - first);
  at_ += ranks_;
  Batch batch = ordered_batch(data_, order_, first, rows);
  batch.weight = remains ? static_cast<double>(rows) : 0;
  return batch;
}

}  // namespace capstan::cli
