// How an engine becomes what a checkpoint says: check() compares everything, then apply() changes the engine.

#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "core/checkpoint/node_storage.hpp"
#include "core/comm/as_one.hpp"
#include "core/config/resolve/elastic.hpp"
#include "core/engine/checkpoint_lookup.hpp"
#include "core/engine/saved_run.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/dtype_names.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/registry/guilty_plugin.hpp"

namespace capstan {
namespace {

std::string state_file(const std::string& where) { return where + "/state.json"; }

void check_format(const Json& state, const std::string& where) {
  const Json* format = state.find("format");
  if (format && *format == Json(kStateFormat)) return;
  throw RuntimeFault(state_file(where) + ": its format is " + (format ? format->dump() : std::string("missing")) +
                     ", this release reads format " + std::to_string(kStateFormat) + ".");
}

/// Every tensor of the model is there, and every parameter that is there is the model's, unless the load is not strict.
/// `without_frozen`: parameters that are not trained may be missing.
void check_model(const Model& model, const CheckpointContents& contents, const CheckpointLookup& lookup,
                 bool without_frozen) {
  std::set<std::string> known;
  for (const NamedTensor& parameter : model.parameters()) {
    known.insert(parameter.name);
    const bool may_lack = !lookup.strict() || parameter.added || (without_frozen && !parameter.trained());
    if (may_lack && !lookup.has(parameter.name, kParam)) continue;
    lookup.require(parameter.name, kParam, parameter.tensor.sizes());
  }
  // What compressions of that run have trained is nothing to a run without them.
  known.merge(trained_states(contents.state, state_file(lookup.where())));
  for (const NamedTensor& buffer : model.buffers()) {
    if (!buffer.persistent || (!lookup.strict() && !lookup.has(buffer.name, kBuffer))) continue;
    lookup.require(buffer.name, kBuffer, buffer.tensor.sizes());
  }
  for (const CheckpointTensor& tensor : contents.tensors) {
    if (!lookup.strict() || tensor.state != kParam || known.contains(tensor.parameter)) continue;
    throw RuntimeFault(lookup.where() + ": holds parameter '" + tensor.parameter +
                       "', which this model does not have. It was saved from another model.");
  }
}

/// Names what a load that is not strict leaves out on either side.
void warn_of_differences(const Model& model, const CheckpointContents& contents, const CheckpointLookup& lookup) {
  std::vector<std::string> missing, unknown;
  std::set<std::string> known = trained_states(contents.state, state_file(lookup.where()));
  for (const NamedTensor& parameter : model.parameters()) {
    known.insert(parameter.name);
    if (!parameter.added && !lookup.has(parameter.name, kParam)) missing.push_back(parameter.name);
  }
  for (const NamedTensor& buffer : model.buffers()) {
    if (buffer.persistent && !lookup.has(buffer.name, kBuffer)) missing.push_back(buffer.name);
  }
  for (const std::string& name : lookup.with_state(kParam)) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  if (!missing.empty()) {
    log::warning(lookup.where() + ": holds nothing for " + quoted_list(missing) + ", which " +
                 (missing.size() == 1 ? "keeps the values that it has." : "keep the values that they have."));
  }
  if (!unknown.empty()) {
    log::warning(lookup.where() + ": holds parameter " + quoted_list(unknown) +
                 ", which this model does not have. The values are not used.");
  }
}

/// Tries the bytes on a copy of the generator.
void check_generator(const at::Generator& generator, const at::Tensor& bytes, const std::string& what) {
  try {
    at::Generator copy = generator.clone();
    // Of a view LibTorch reads other memory: it multiplies the view's offset by the size of the generator's state.
    copy.set_state(bytes.clone());
  } catch (const std::exception&) {
    throw RuntimeFault(what + ": is not the state of a random number generator of this LibTorch (" +
                       std::to_string(bytes.numel()) + " bytes). Load another checkpoint.");
  }
}

}  // namespace

bool Engine::State::nodes_store() const { return config.checkpoint.use_node_local_storage && communicator->size() > 1; }

void Engine::State::check_optimizer(const SavedRun& saved, const std::string& where) const {
  if (!optimizer) return;
  const std::string type = saved.optimizer ? saved.optimizer->type : "none";
  if (type == optimizer->manifest().type) return;
  throw RuntimeFault(where + ": was saved with optimizer " + type + ", this run uses " + optimizer->manifest().type +
                     ". Resume with the same optimizer, or start from its weights alone with --init-from.");
}

/// The optimizer's states: what this rank needs, and of what is each rank's own that of all, so that ranks agree.
void Engine::State::check_states(const CheckpointLookup& lookup, const SavedRun& saved) {
  for (Piece& piece : store.pieces()) {
    const ParameterEntry& entry = store.entries()[piece.entry];
    if (begins_anew(entry, lookup)) continue;
    store.for_each_state(piece, [&](const StateSpec& spec, const at::Tensor& values) {
      if (!spec.scratch) {
        lookup.require(entry.name, spec, state_shape(spec, entry, values), values.scalar_type());
      }
    });
  }
  for (const CompressionState& state : compressions.states_to_save()) {
    if (lookup.has(state.parameter, state.state)) lookup.require(state.parameter, state.state, state.shape);
  }
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank) lookup.require("", spec->name, {values->numel()});
    if (!spec->per_rank || saved.world_size != config.batch.world_size) continue;
    for (int rank = 0; rank < communicator->size(); ++rank) {
      lookup.require("", of_rank(spec->name, rank), {values->numel()});
    }
  }
}

/// The states of all ranks' generators, so that ranks agree.
void Engine::State::check_generators(const CheckpointLookup& lookup, const SavedRun& saved) const {
  for (const auto& [device, generator] : generators()) {
    const auto of_first = saved.generators.find(device);
    if (of_first != saved.generators.end()) {
      check_generator(generator, of_first->second, state_file(lookup.where()) + ": rng." + device);
    }
    for (int rank = 1; rank < communicator->size(); ++rank) {
      const std::string name = generator_state(device, rank);
      const at::Tensor bytes = lookup.find_whole(name);
      if (bytes.defined()) check_generator(generator, bytes, lookup.where() + ": " + name);
    }
  }
}

std::function<bool(const CheckpointTensor&)> Engine::State::taken_tensors() {
  std::map<std::string, StateSpec> specs;
  for (const StateSpec& spec : store.states()) specs[spec.name] = spec;
  std::map<std::string, const ParameterEntry*> entries;
  for (const ParameterEntry& entry : store.entries()) entries[entry.name] = &entry;
  return [specs, entries, rank = communicator->rank()](const CheckpointTensor& tensor) {
    const auto found = entries.find(tensor.parameter);
    if (found == entries.end()) return tensor.parameter.empty() || !is_of_another_rank(tensor.state, rank);
    const ParameterEntry& entry = *found->second;
    std::int64_t offset = entry.offset, numel = entry.master.numel();
    if (const auto spec = specs.find(tensor.state); spec != specs.end()) {
      if (!is_cut(spec->second)) return true;  // each rank has all of it
      offset = spec->second.values_for(offset, entry.shape);
      numel = spec->second.values_for(numel, entry.shape);
    }
    return tensor.offset < offset + numel && offset < tensor.offset + tensor.values.numel();
  };
}

SavedRun Engine::State::check(const CheckpointContents& contents, const CheckpointLookup& lookup) {
  const std::string& where = lookup.where();
  check_format(contents.state, where);
  const StateReader state(contents.state, state_file(where));
  const SavedRun saved = read_saved_run(state);
  check_optimizer(saved, where);
  check_group_numbers(saved, where);
  if (const Json* saved_config = contents.state.find("config")) {
    const std::string conflict = elastic_conflict(*saved_config, config.effective);
    if (!conflict.empty()) throw RuntimeFault(where + ": " + conflict);
  }
  check_model(model, contents, lookup, saved.without_frozen);
  check_states(lookup, saved);
  check_forward_tensors(lookup);
  check_generators(lookup, saved);
  return saved;
}

void Engine::State::load_sampler(const SavedRun& saved, const std::string& where) {
  const std::string had = saved.sampler ? saved.sampler->type : "none";
  const std::string has = config.run.sampler ? config.run.sampler->type : "none";
  if (sampler && had == has) return sampler->load(*saved.sampler, saved.progress.global_steps);
  if (had == has || communicator->rank() > 0 || !optimizer) return;
  log::warning(where + ": was saved with sampler " + had + ", this run has " + has +
               (sampler ? ", which goes on at its step " + std::to_string(sampler->steps()) + "."
                        : ": samples go on in the order of capstan.data."));
}

/// Components read their own texts. When one of them refuses, on any rank, all have again what they had.
void Engine::State::load_components(const SavedRun& saved, const std::string& where) {
  const bool same_scheduler = saved.scheduler && config.scheduler && saved.scheduler->type == config.scheduler->type;
  const std::string optimizer_before = optimizer ? optimizer->save() : "", schedule_before = schedule.save();
  const Json observers_before = observers.save(), compressions_before = compressions.save();
  std::optional<Sampler::Saved> sampler_before;
  if (sampler) sampler_before = sampler->save(progress.global_steps);
  try {
    as_one(*communicator, "load_checkpoint, components", [&] {
      try {
        if (optimizer) optimizer->load(saved.optimizer->state);
        if (same_scheduler) schedule.load(saved.scheduler->state);
        observers.load(saved.observers);
        compressions.load(saved.compressions);
        load_sampler(saved, where);
      } catch (const PluginError& refusal) {
        throw RuntimeFault(state_file(where) + ": " + refusal.what());
      }
    });
  } catch (...) {
    if (optimizer) optimizer->load(optimizer_before);
    schedule.load(schedule_before);
    observers.load(observers_before);
    compressions.load(compressions_before);
    if (sampler) sampler->load(*sampler_before, progress.global_steps);
    throw;
  }
  warn_of_other_components(saved, where);
}

/// Parameters with their states: of each this rank's part.
void Engine::State::load_entries(const CheckpointLookup& lookup) {
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group, lookup.strict() ? TileStaging::Show::kNothing : TileStaging::Show::kValues);
    for (Piece& piece : store.pieces(sub_group)) {
      const ParameterEntry& entry = store.entries()[piece.entry];
      const std::int64_t offset = entry.offset + piece.offset;
      if (begins_anew(entry, lookup)) continue;
      lookup.copy(entry.name, kParam, piece.master, offset);
      if (config.zero.stage > 0 && !config.zero.load_from_fp32_weights) {
        piece.master.copy_(piece.master.to(compute_dtype(config.precision)));
      }
      store.for_each_state(piece, [&](const StateSpec& spec, const at::Tensor& values) {
        if (spec.scratch) return;
        lookup.copy(entry.name, spec.name, values, is_cut(spec) ? spec.values_for(offset, entry.shape) : 0);
      });
    }
    store.refresh_copies(sub_group);
    store.release(sub_group, true);
  }
}

bool Engine::State::begins_anew(const ParameterEntry& entry, const CheckpointLookup& lookup) const {
  return (!lookup.strict() || compressions.is_trained_state(entry.name)) && !lookup.has(entry.name, kParam);
}

/// A compression that the run had not when it was saved makes its states of the values that are loaded.
void Engine::State::load_compression_states(const CheckpointLookup& lookup) {
  store.set_initial(false);
  std::set<std::string> anew;
  for (const CompressionState& state : compressions.states_to_save()) {
    if (!lookup.has(state.parameter, state.state)) {
      anew.insert("compression '" + state.by + "'");
      compressions.begin_anew(state.by);
    } else {
      const std::int64_t from = state.parameter.empty() ? 0 : store.compressed_part(state.parameter).range.offset;
      lookup.copy(state.parameter, state.state, state.values, from);
    }
  }
  for (const NamedTensor& parameter : model.parameters()) {
    if (parameter.added && !lookup.has(parameter.name, kParam)) anew.insert("'" + parameter.name + "'");
  }
  if (communicator->rank() > 0) return;
  for (const std::string& name : anew) {
    log::warning(lookup.where() + ": holds no values of " + name + ", which begins anew.");
  }
}

void Engine::State::load_frozen(const CheckpointLookup& lookup) {
  std::int64_t kept = 0;
  for (std::size_t k = 0; k < store.frozen().size(); ++k) {
    const std::string& name = store.frozen()[k].name;
    if (!lookup.has(name, kParam)) {
      ++kept;
      continue;
    }
    store.set_frozen(k, [&](const at::Tensor& to, std::int64_t offset) { lookup.copy(name, kParam, to, offset); });
  }
  if (kept == 0 || !lookup.strict() || communicator->rank() > 0) return;
  log::warning(lookup.where() + ": was saved without parameters that are not trained. The model's own values of " +
               std::to_string(kept) + " such parameters stay: load those that it was trained with before.");
}

/// States of the whole model. Those of each rank's own are of use to as many ranks only; others start anew.
void Engine::State::load_model_states(const CheckpointLookup& lookup, const SavedRun& saved) {
  std::string restarted;
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank) {
      lookup.copy("", spec->name, *values);
    } else if (saved.world_size == config.batch.world_size) {
      lookup.copy("", of_rank(spec->name, communicator->rank()), *values);
    } else {
      values->fill_(spec->init);
      restarted += (restarted.empty() ? "" : ", ") + spec->name;
    }
  }
  if (!restarted.empty() && communicator->rank() == 0) {
    log::info(lookup.where() + ": " + restarted + " of " + optimizer->where() + " belong to each rank of " +
              std::to_string(saved.world_size) + " and start anew with " + std::to_string(config.batch.world_size) +
              ".");
  }
}

/// A rank, or a device, that was not there before goes on with the generator that it has.
void Engine::State::load_generators(const CheckpointLookup& lookup, const SavedRun& saved) {
  const int rank = communicator->rank();
  for (auto& [device, generator] : generators()) {
    at::Tensor bytes;
    if (rank > 0) {
      bytes = lookup.find_whole(generator_state(device, rank));
    } else if (const auto found = saved.generators.find(device); found != saved.generators.end()) {
      bytes = found->second;
    }
    if (bytes.defined()) generator.set_state(bytes.clone());
  }
}

void Engine::State::refuse_half_loaded() const {
  if (!half_loaded) return;
  throw RuntimeFault(
      "an exception has ended the last load_checkpoint or load_weights after it had begun to change the engine, which "
      "is now neither what it was nor what was to be loaded. Load a checkpoint before the engine is used.");
}

/// All of it but the components' texts and what the ranks do together.
void Engine::State::apply(const CheckpointLookup& lookup, const SavedRun& saved) {
  const std::string& where = lookup.where();
  abandon_step();
  load_entries(lookup);
  store.settle_stores();
  load_model_states(lookup, saved);
  load_frozen(lookup);
  load_forward_tensors(lookup, saved);
  warn_of_other_buffers(lookup);
  warn_of_other_states(lookup);
  load_compression_states(lookup);
  progress = saved.progress;
  micro_steps_seen = progress.global_steps * config.batch.gradient_accumulation_steps;
  scaler.restore(saved.loss_scale);
  restore_groups(saved, where);
  load_generators(lookup, saved);
  if (saved.world_size != config.batch.world_size && communicator->rank() == 0) {
    log::info(where + ": was saved by " + std::to_string(saved.world_size) +
              (saved.world_size == 1 ? " process and goes on with " : " processes and goes on with ") +
              std::to_string(config.batch.world_size) + ".");
  }
  schedule.apply(progress.updates);
}

void Engine::State::take_over(const CheckpointContents& contents, const SavedRun& saved, const std::string& where,
                              const std::string& call, bool strict) {
  load_components(saved, where);
  half_loaded = true;
  const CheckpointLookup lookup(contents, where, strict);
  as_one(*communicator, call + ", apply", [&] { apply(lookup, saved); });
  if (!strict && communicator->rank() == 0) warn_of_differences(model, contents, lookup);
  store.refresh_all();
  half_loaded = false;
  wants_teacher = false;
  note_step(progress.global_steps + 1);
  emit(CAPSTAN_EVENT_LOADED);
  resumed_at = progress.global_samples;
  run_id = saved.run;
  as_one(*communicator, call + ", monitors", [&] { build_monitors(); });
}

Json Engine::State::load(const std::string& dir, const std::string& tag_given,
                         const std::function<void(const Json&)>& check_client_state, bool strict) {
  background_save.finish();
  snapshots.forget();
  at::NoGradGuard no_grad;
  if (const std::string failure = store.give_up_what_failed(); !failure.empty()) {
    log::warning("load_checkpoint: what was under way has failed, and the checkpoint takes its place: " + failure);
  }
  const std::string completed = nodes_store() ? complete_checkpoint(dir, tag_given, *communicator) : tag_given;
  std::string where;
  CheckpointContents contents;
  SavedRun saved;
  as_one(*communicator, "load_checkpoint, check", [&] {
    const std::string tag = completed.empty() ? latest_tag(dir) : completed;
    where = std::filesystem::path(dir) / tag;
    contents = read_checkpoint(dir, tag, taken_tensors());
    saved = check(contents, CheckpointLookup(contents, where, strict));
    if (const Json* of_program = contents.state.find("client_state"); of_program && check_client_state) {
      try {
        check_client_state(*of_program);
      } catch (const RuntimeFault& fault) {
        throw RuntimeFault(state_file(where) + ": " + fault.what());
      }
    }
  });
  take_over(contents, saved, where, "load_checkpoint", strict);
  note_checkpoint(where);
  const Json* client_state = contents.state.find("client_state");
  return client_state ? *client_state : Json::object();
}

}  // namespace capstan
