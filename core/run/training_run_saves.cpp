// What a run begins from, and what it leaves: checkpoints and snapshots.

#include <filesystem>
#include <utility>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/comm/communicator.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/run/elastic_saved.hpp"
#include "core/run/training_run.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

/// A checkpoint's folder as --resume takes it.
std::string resume_name(const std::string& checkpoint) {
  const std::filesystem::path path(checkpoint);
  return path.parent_path().string() + ":" + path.filename().string();
}

std::string continue_with(const std::string& checkpoint) { return "Continue with --resume " + resume_name(checkpoint); }

}  // namespace

/// The weights that a fresh start takes; empty: the model's own initial values. A program's own model is not that of
/// the configuration.
std::string TrainingRun::given_weights() const {
  if (!options_.init_from.empty()) return options_.init_from;
  return parts_.model || !options_.resume.empty() ? "" : initial_weights(loaded_.config);
}

/// From initial values, given weights or a checkpoint.
void TrainingRun::begin() {
  if (const std::string weights = given_weights(); !weights.empty()) {
    engine_->load_weights(weights);
    print_line("started from the weights of " + weights);
  }
  // A resumed student is what it has become.
  if (loaded_.config.compression.layer_reduction.enabled && options_.resume.empty()) take_teacher();
  if (!options_.resume.empty()) resume(CheckpointName::parse(options_.resume), options_.load);
}

/// From the checkpoint that an elastic run has saved last, where that is newer than the snapshot that was loaded, if
/// any. Returns whether there is one. Throws StateElsewhere where hosts that are not ready yet may have a newer state.
bool TrainingRun::go_on_from_disk(bool has_snapshot) {
  const World& world = member_->world();
  const std::optional<SavedStep> saved = last_saved(member_->folder(), *loaded_.communicator);
  if (world.elsewhere && world.end.empty() && (!saved || saved->step < world.kept)) {
    throw StateElsewhere("the snapshot of step " + grouped(world.kept) + " is on hosts that are not ready yet.");
  }
  const std::string lost = has_snapshot ? "the snapshot of step " + grouped(world.kept) + " cannot be used: "
                                        : "no snapshot of the run can be used: ";
  if (!saved || (has_snapshot && saved->step <= step())) {
    const std::string then = has_snapshot ? "the run goes on from step " + grouped(step()) + "."
                                          : "it has saved no checkpoint either, and begins anew.";
    if (speaks_ && world.kept > 0) log::warning(lost + then);
    return false;
  }
  if (speaks_) log::warning(lost + "it goes on from the newest checkpoint that it has saved.");
  resume(saved->checkpoint);
  return true;
}

/// From the newest snapshot of an elastic run, or a checkpoint in its place. False where there is no snapshot.
bool TrainingRun::go_on() {
  member_ ? snapshots_.emplace(*member_) : snapshots_.emplace(*restart_);
  std::optional<Json> kept = snapshots_->load(*engine_);
  const bool is_newest = !member_ || (kept && step() >= member_->world().kept);
  if (!is_newest && go_on_from_disk(kept.has_value())) kept.reset();
  if (kept) {
    folder_.go_on(engine_->run_id(), step());
    // What torchrun has done with the time since then nobody knows.
    const double since = member_ ? member_->world().since : 0, waited = member_ ? member_->world().waited : 0;
    account_ = ElasticAccount::go_on(kept->at("account"), since, waited, now());
    first_loss_ = kept->at("first_loss").as_number();
    steps_here_ = kept->at("steps_here").as_integer();
    best_.load(kept->find("best"));
  }
  if (generation() > 1 && (!member_ || member_->world().end.empty())) {
    print_line("generation " + grouped(generation()) + ": " + grouped(engine_->world_size()) +
               (engine_->world_size() == 1 ? " process goes" : " processes go") + " on from step " + grouped(step()) +
               " (" + (member_ ? member_->world().change : "torchrun has started the processes anew") + ")");
  }
  return kept.has_value();
}

/// Whatever comes next, the run need not begin anew.
void TrainingRun::take_first_snapshot() {
  try {
    snapshots_->take(*engine_, kept_with_snapshot());
  } catch (const PeerFault&) {
    throw;
  } catch (const RuntimeFault& fault) {
    if (member_) throw;
    // All ranks find it. Who trains by torchrun may have checkpoints on disk in place of snapshots.
    if (speaks_) log::warning(std::string(fault.what()) + " The run goes on without snapshots.");
    engine_->want_snapshots(false);
    snapshots_.reset();
  }
}

void TrainingRun::write_elastic_metrics() {
  const std::pair<const char*, double> metrics[] = {
      {"generation", static_cast<double>(generation())},
      {"processes", engine_->world_size()},
      {"losses", member_ ? static_cast<double>(member_->losses()) : static_cast<double>(generation() - 1)},
      {"seconds_repeated", account_.repeated},
      {"seconds_regrouping", account_.regrouping},
      {"seconds_waiting", account_.waiting},
  };
  for (const auto& [name, value] : metrics) engine_->write_metric(std::string("Train/Elastic/") + name, value);
}

Json TrainingRun::kept_with_snapshot() const {
  Json kept = Json::object();
  kept["data"] = data_identity();
  kept["account"] = account_.json(now());
  kept["first_loss"] = first_loss_;
  kept["steps_here"] = steps_here_;
  kept["best"] = best_.json();
  return kept;
}

Json TrainingRun::data_identity() const {
  Json identity = Json::object();
  identity["fingerprint"] = data_.fingerprint;
  identity["samples"] = data_.samples;
  identity["sequence_length"] = data_.sequence_length;
  identity["seed"] = std::to_string(run_.seed);  // as text: it may not fit a signed number
  identity["shuffle"] = run_.shuffle;
  return identity;
}

void TrainingRun::warn_about_other_data(const Json& client_state, const std::string& checkpoint) const {
  const Json* then = client_state.find("data");
  if (then == nullptr) return;
  const Json now = data_identity();
  const auto differs = [&](const char* key) {
    const Json* value = then->find(key);
    return value != nullptr && *value != now.at(key);
  };
  const auto told = [&](const char* key) {
    const Json* value = then->find(key);
    return value == nullptr ? std::string("?") : value->is_string() ? value->as_string() : value->dump();
  };
  if (differs("fingerprint") || differs("sequence_length")) {
    log::warning(checkpoint + ": was trained on other data (" + told("samples") + " samples of " +
                 told("sequence_length") + " tokens, now " + grouped(data_.samples) + " of " +
                 grouped(data_.sequence_length) + "). The run goes on with this data, from sample " +
                 grouped(engine_->progress().global_samples) + " of its order.");
  } else if (differs("seed") || differs("shuffle")) {
    log::warning(checkpoint + ": was trained with another order of the data (seed " + told("seed") + ", now " +
                 std::to_string(run_.seed) + "). The run does not continue as it would have.");
  }
}

void TrainingRun::take_teacher() {
  if (run_.teacher.empty()) {
    throw ConfigError(
        "compression_training.layer_reduction.enabled: the student needs a teacher. Give --teacher CHECKPOINT, or "
        "capstan.teacher.path.");
  }
  engine_->load_teacher(run_.teacher);
  const LayerReductionConfig& section = loaded_.config.compression.layer_reduction;
  std::string layers;
  for (const std::int64_t layer : section.teacher_layer) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
  print_line("layer reduction: the student's " + std::to_string(section.teacher_layer.size()) + " layers are " +
             layers + " of '" + section.module_name_prefix + "' of " + run_.teacher);
}

void TrainingRun::resume(const CheckpointName& name, LoadOptions load) {
  const std::string tag = tag_of(name);
  const std::string checkpoint = (std::filesystem::path(name.dir) / tag).string();
  const Json client_state = engine_->load_checkpoint(name.dir, tag, nullptr, load);
  warn_about_other_data(client_state, checkpoint);
  best_.load(client_state.find("best"));
  folder_.go_on(engine_->run_id(), step());
  saved_step_ = step();
  kept_ = checkpoint;
  print_line("resumed from " + checkpoint + " at step " + grouped(step()) +
             (load.optimizer_states ? "" : ", with new states of the optimizer") +
             (load.schedule ? "" : ", with the schedule at its start"));
  if (step() >= *run_.steps) {
    log::warning(checkpoint + ": is at step " + grouped(step()) + ", and steps is " + grouped(*run_.steps) +
                 ", so there is nothing to train. Steps count from the beginning of the run: give a larger --steps.");
  }
}

std::string TrainingRun::what_is_kept() const {
  if (!kept_.empty()) return continue_with(kept_);
  return run_.save_dir.empty() ? "Nothing was saved: --save is not given." : "No checkpoint had been saved yet.";
}

/// Waits for the checkpoint that is being written for as long as it gets on within `patience`.
bool TrainingRun::saved_in_background(std::chrono::milliseconds patience) const {
  SaveProgress progress;
  while (!engine_->saved_within(patience)) {
    if (patience.count() == 0 || !progress.got_on()) return false;
  }
  return true;
}

/// `what` tells where the run was, "in step 7, which did not end". It is logged once a checkpoint that is being written
/// in the background has had its time: a run that hangs is no reason to lose it.
Interrupt::Unfinished TrainingRun::unfinished(Kind kind, const std::string& what) {
  const auto patience = kind == Kind::kSave ? std::chrono::milliseconds(0) : interrupt_->bound(Kind::kSave).time;
  return [this, what, patience](const std::string& bound) {
    const bool saved = !saving_.empty() && saved_in_background(patience);
    log::warning("interrupted " + what + " within " + bound + ". " + (saved ? continue_with(saving_) : what_is_kept()));
  };
}

/// Names the checkpoint of the lowest evaluation loss once it is complete.
void TrainingRun::mark_best() {
  const std::filesystem::path checkpoint = kept_;
  const bool is_best = run_.keep_best && saving_.empty() && best_.step() && saved_step_ == best_.step();
  std::error_code error;
  if (is_best && std::filesystem::equivalent(checkpoint.parent_path(), run_.save_dir, error)) {
    folder_.mark_best(checkpoint.filename().string());
  }
}

std::string TrainingRun::best_text() const {
  return "step " + grouped(*best_.step()) + " (eval_loss " + fixed(best_.loss(), 4) + ")";
}

void TrainingRun::save() {
  if (run_.save_dir.empty() || saved_step_ == step()) return;
  const Part bounded = part(Kind::kSave, "in the save after step " + grouped(step()) + ", which did not get on");
  Json client_state = Json::object();
  client_state["data"] = data_identity();
  client_state["restarting_parents"] = folder_.restarting_parents();
  client_state["best"] = best_.json();
  finish_saving();
  saving_ = (std::filesystem::path(run_.save_dir) / engine_->save_checkpoint(run_.save_dir, "", client_state)).string();
  saved_step_ = step();
  note_saved();
}

/// Prints that a checkpoint is complete, perhaps long after save().
void TrainingRun::note_saved() {
  if (saving_.empty() || engine_->saving()) return;
  const Part bounded = part(Kind::kSave, "as older checkpoints were removed, which did not get on");
  engine_->finish_saving();
  kept_ = std::exchange(saving_, "");
  if (member_ && speaks_) {
    const std::filesystem::path checkpoint = kept_;
    capstan::note_saved(member_->folder(), *saved_step_,
                        {checkpoint.parent_path().string(), checkpoint.filename().string()});
  }
  mark_best();
  folder_.add(std::filesystem::path(kept_).filename().string());
  print_line("saved " + kept_);
}

void TrainingRun::finish_saving() {
  const Part bounded = part(Kind::kSave, "in the save of '" + saving_ + "', which did not get on");
  engine_->finish_saving();
  note_saved();
}

std::optional<int> TrainingRun::save_only() {
  if (step() > 0) save();
  finish_saving();
  log::info("the run ends after step " + grouped(step()) + " of " + grouped(*run_.steps) + ". " + what_is_kept());
  return member_->world().end_code;
}

}  // namespace capstan
