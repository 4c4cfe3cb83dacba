#include "core/run/load_run.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "core/comm/time_limits.hpp"
#include "core/components/device.hpp"
#include "core/engine/initialize.hpp"
#include "core/log.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/shared_failure.hpp"

namespace capstan {
namespace {

/// How long rank 0 has to print the same failure, and the processes to meet before that.
constexpr std::chrono::milliseconds kSaying = std::chrono::seconds(2), kMeeting = std::chrono::seconds(5);

/// Tells the other ranks, and leaves it to rank 0 to print what that rank has found as well.
void tell_others(Communicator& communicator, const std::string& why) {
  // No other rank has a failure that begins with the name of this one.
  if (why.starts_with("rank ")) return communicator.tell_failure(why);
  if (communicator.tell_failure_as_rank_0(why, kSaying)) leave_failure_to_another();
}

/// Without the addresses of functions that LibTorch adds.
std::string sentence_of(const std::exception& error) {
  const std::string text = error.what();
  const auto frames = text.find("\nframe #0:");
  return frames == std::string::npos ? text : text.substr(0, frames);
}

/// For a rank that refuses to start.
void meet_and_tell(const Rendezvous& rendezvous, const std::string& why) {
  if (rendezvous.size == 1) return;
  try {
    Communicator::Options options = time_limits(process_environment());
    options.arrival = std::min(options.arrival, kMeeting);
    tell_others(*Communicator::connect(rendezvous, options), why);
  } catch (const std::exception&) {
    // The others are not there: this rank prints itself why it stops.
  }
}

ConfigContext context_of(ConfigContext context, Purpose purpose, const Rendezvous& rendezvous, int world_size) {
  context.takes_steps = purpose == Purpose::kTraining;
  context.trains_alone = context.trains_alone && context.takes_steps;
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

LoadedConfig load_run(const RunSource& source, Purpose purpose) {
  return load_run(source, purpose, read_rendezvous(process_environment()));
}

LoadedConfig load_run(const RunSource& source, Purpose purpose, const Rendezvous& rendezvous) {
  LoadedConfig loaded;
  note_rank(rendezvous.rank, rendezvous.size);
  if (rendezvous.rank > 0) {
    // Rank 0 alone logs what all ranks would log alike.
    log::set_level(log::Level::kError);
    log::set_speaker("rank " + std::to_string(rendezvous.rank));
  }
  try {
    const ConfigContext context = context_of(source.context, purpose, rendezvous, rendezvous.size);
    loaded.config = load_config(source.text(), context, loaded.plugins);
  } catch (const std::exception& error) {
    meet_and_tell(rendezvous, error.what());
    throw;
  }
  connect(loaded, rendezvous, time_limits(process_environment()));
  return loaded;
}

LoadedConfig load_run(const ConfigContext& context, Purpose purpose, const RunStart& start) {
  LoadedConfig loaded;
  note_rank(start.rendezvous.rank, start.rendezvous.size);
  const ConfigContext completed = context_of(context, purpose, start.rendezvous, start.world_size);
  loaded.config = load_config(start.text, completed, loaded.plugins);
  connect(loaded, start.rendezvous, start.limits);
  return loaded;
}

int run_as_one(const LoadedConfig& loaded, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    tell_others(*loaded.communicator, sentence_of(error));
    throw;
  }
}

}  // namespace capstan
