#include "core/run/elastic_training.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/comm/time_limits.hpp"
#include "core/elastic/save_fence.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/run/elastic_made_of.hpp"
#include "core/run/elastic_snapshots.hpp"
#include "core/run/run_data.hpp"
#include "core/run/run_model.hpp"
#include "core/shared_failure.hpp"

namespace capstan {
namespace {

/// How long the launchers may take to begin another generation: where this process has lost another one, and where it
/// fails in a way that may or may not come from that.
constexpr std::chrono::milliseconds kPeerGone{30'000}, kPerhapsGone{500};
/// A process that another one lost because it has failed ends after kPerhapsGone, and with it the run. Where none has
/// ended for so long, the connection alone was lost.
constexpr std::chrono::milliseconds kPerhapsFailed{1000};
/// How long a process may take to leave a collective of a generation that is over.
constexpr std::chrono::milliseconds kToLeave{5000};

/// The launcher counts it as lost, and starts another one.
void end_this_process() {
  log::error("a collective of an earlier generation does not end: this process is ended, and replaced.");
  kill(getpid(), SIGKILL);
}

/// Sets RANK and the like, which plugins and models read after any launch. The processes must not have connected yet:
/// setenv() may move the variables, and rank 0's store thread reads them at each connection.
void note_in_environment(const Rendezvous& rendezvous, std::int64_t generation) {
  const auto set = [](const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RANK", rendezvous.rank);
  set("LOCAL_RANK", rendezvous.local_rank);
  set("WORLD_SIZE", rendezvous.size);
  set("LOCAL_WORLD_SIZE", rendezvous.local_size);
  set("CAPSTAN_GENERATION", generation);
}

/// The launcher has read a configuration to know how many processes may train; the program has read its own.
void check_batch(const Config& config) {
  const char* planned = std::getenv("CAPSTAN_ELASTIC_BATCH");
  const std::string own = std::to_string(config.batch.train_batch_size);
  if (planned == nullptr || own == planned) return;
  throw ConfigError(config.source + ": train_batch_size: is " + own +
                    ", and the configuration that the launcher was "
                    "given has " +
                    planned + ". Give --config of 'capstan launch' the program's configuration.");
}

}  // namespace

ElasticTraining::ElasticTraining(const RunSource& source, const RunParts& parts, ElasticMember& member,
                                 Interrupt* interrupt)
    : parts_(parts),
      member_(member),
      interrupt_(interrupt),
      context_(source.context),
      text_(source.text()),
      guard_(kToLeave, end_this_process) {}

int ElasticTraining::run(const Train& train) {
  while (true) {
    const ElasticMember::Task task = member_.next([this] { prepare(); }, Interrupt::requested);
    if (task == ElasticMember::Task::kEnd) return member_.world().end_code;
    const std::optional<int> code = train_in_generation(train, task == ElasticMember::Task::kSave);
    if (!code) continue;
    // All have saved together, or this process for the others: nobody else will remove the folder.
    if (member_.is_orphan()) member_.folder().remove();
    return *code;
  }
}

void ElasticTraining::check_same(const LoadedConfig& loaded, const Model& model) const {
  member_.check_same(made_of(loaded, model));
}

RunStart ElasticTraining::start(bool alone) {
  const World& world = member_.world();
  RunStart start{text_, {}, {}, static_cast<int>(world.size)};
  if (alone && !world.spans_hosts()) return start;
  start.rendezvous = member_.rendezvous();
  start.limits = member_.limits(time_limits(process_environment()));
  start.limits.given_up = [this, is_over = start.limits.given_up] {
    const bool over = is_over();
    if (over) guard_.give_up();
    return over;
  };
  return start;
}

std::optional<int> ElasticTraining::train_in_generation(const Train& train, bool only_to_save) {
  bool connected = false;
  try {
    const ElasticGuard::Generation generation(guard_);
    const RunStart start = this->start(only_to_save);
    speak_as(start.rendezvous);
    note_in_environment(start.rendezvous, member_.world().generation);
    LoadedConfig loaded = load_run(context_, Purpose::kTraining, start);
    connected = true;
    check_batch(loaded.config);
    keep_older_out(loaded, start.rendezvous.rank == 0);
    log::set_level(start.rendezvous.rank == 0 ? level_ : log::Level::kError);
    // Not as many as have trained, but one of each host: together they hold all that there is.
    if (only_to_save) loaded.config.batch.world_size = loaded.communicator->size();
    return train(loaded, only_to_save);
  } catch (const StateElsewhere&) {
    member_.tell_lacking();
    rethrow_unless_over(kPeerGone);
  } catch (const PeerFault& fault) {
    if (!member_.was_ended_by_others(connected ? kPerhapsFailed : kPerhapsGone)) member_.tell_broken(fault.what());
    rethrow_unless_over(kPeerGone);
  } catch (const RuntimeFault&) {
    rethrow_unless_over(is_kept_out() ? kPeerGone : kPerhapsGone);
  } catch (const PluginError&) {
    rethrow_unless_over(kPerhapsGone);
  } catch (const std::exception&) {
    rethrow_unless_over(std::chrono::milliseconds(0));
  }
  return std::nullopt;
}

/// From here on no process of an older generation publishes a checkpoint. A folder that is not there yet holds none.
void ElasticTraining::keep_older_out(const LoadedConfig& loaded, bool leads) {
  const World& world = member_.world();
  set_save_token({world.run, world.term, world.generation});
  save_dir_ = world.run.empty() ? "" : loaded.config.run.save_dir;
  std::error_code error;
  if (leads && !save_dir_.empty() && std::filesystem::is_directory(save_dir_, error)) {
    enter_save_fence(save_dir_, save_token());
  }
}

/// Whether a newer generation saves where this one does: the launcher learns of it as soon as it reaches the others.
bool ElasticTraining::is_kept_out() const {
  std::error_code error;
  if (save_dir_.empty() || !std::filesystem::is_directory(save_dir_, error)) return false;
  try {
    check_save_fence(save_dir_, save_token());
    return false;
  } catch (const RuntimeFault&) {
    return true;
  }
}

/// What fails because another process is gone is forgotten: the step is done again in the next generation.
void ElasticTraining::rethrow_unless_over(std::chrono::milliseconds patience) const {
  if (member_.was_ended_by_others(patience)) return;
  const std::exception_ptr failure = std::current_exception();
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    if (!member_.says_first(error.what())) leave_failure_to_another();
  }
  std::rethrow_exception(failure);
}

/// What all ranks would say alike is said by rank 0, and what has been said by the first generation not again.
void ElasticTraining::speak_as(const Rendezvous& rendezvous) const {
  const bool first = member_.world().generation == 1;
  log::set_level(rendezvous.rank == 0 && first ? level_ : log::Level::kError);
  log::set_speaker(rendezvous.rank == 0 ? "" : "rank " + std::to_string(rendezvous.rank));
  if (interrupt_) interrupt_->speaks(rendezvous.rank == 0);
}

/// Loads what the training will need, and finds out whether it is the same training, before the others count on this
/// process.
void ElasticTraining::prepare() const {
  log::set_level(log::Level::kError);
  RunStart start{text_, {}, {}, static_cast<int>(member_.folder().read().size)};
  start.rendezvous.origin = "capstan launch --elastic";
  const LoadedConfig loaded = load_run(context_, Purpose::kTraining, start);
  const Model model = build_model(parts_, loaded);
  check_same(loaded, model);
  if (parts_.data) {
    parts_.data(loaded, model);
  } else if (!loaded.config.run.data_paths.empty()) {
    open_data(loaded.config.run.data_paths, "capstan.data.path", loaded, model);
  }
}

}  // namespace capstan
