// How an engine becomes what a checkpoint says: check() compares everything, then apply() changes the engine.

#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/export.hpp"
#include "core/checkpoint/node_storage.hpp"
#include "core/comm/as_one.hpp"
#include "core/config/resolve/elastic.hpp"
#include "core/errors.hpp"
#include "core/keep/keep.hpp"
#include "core/keep/kept_types.hpp"
#include "core/keep/other_names.hpp"
#include "core/log.hpp"
#include "core/model/dtype_names.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/pretrained/model_source.hpp"
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

/// Refuses a model that is not the one that was trained, although its tensors may have the same shapes.
void check_model_config(const Json& saved_configuration, const Json& configuration, const std::string& where) {
  const Json *saved = pretrained_config(saved_configuration), *now = pretrained_config(configuration);
  if (saved == nullptr || now == nullptr) return;
  const std::optional<ConfigDifference> other = config_difference(*saved, *now);
  if (!other) return;
  throw RuntimeFault(
      where + ": was saved of a model whose config.json has " + other->saved + " for " + other->key +
      ", and now it has " + other->now +
      ". Resume with the folder as it was, or leave --model out: the checkpoint holds the configuration.");
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

/// Whether the state of a parameter begins as that of a new run.
bool starts_anew(const SavedRun& saved, const CheckpointLookup& lookup, const std::string& parameter,
                 const StateSpec& spec) {
  return !saved.options.optimizer_states || (saved.starts_optimizer && !lookup.has(parameter, spec.name));
}

}  // namespace

bool Keep::nodes_store() const {
  return parts_.config.checkpoint.use_node_local_storage && parts_.communicator->size() > 1;
}

TrainedNames Keep::trained_names() const {
  if (!parts_.optimizer) return {};
  TrainedNames groups(parts_.groups.size());
  const std::vector<NamedTensor>& parameters = parts_.model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trained() && !parameters[i].added)
      groups[parts_.groups.group_of(i)].push_back(parameters[i].name);
  }
  return groups;
}

void Keep::check_optimizer(const SavedRun& saved, const std::string& where) const {
  if (!parts_.optimizer) return;
  if (!saved.options.optimizer_states) {
    if (saved.progress.updates == 0 || !communicates_by_itself(parts_.manifest())) return;
    // Past the warm-up it would divide by second moments of 0.
    throw RuntimeFault(where + ": was saved after update " + std::to_string(saved.progress.updates) + ", and " +
                       parts_.optimizer->manifest().type +
                       " counts the warm-up of its states from the first update of the run on, so it cannot begin "
                       "them anew. Start from the weights alone with --init-from, in Python with "
                       "load_module_only=True.");
  }
  // Another program's file may say nothing of its optimizer: the states then tell.
  if (!saved.writer.empty() && !saved.optimizer) return;
  std::string type = saved.optimizer ? saved.optimizer->type : "none";
  if (!saved.writer.empty()) {
    if (const auto found = parts_.plugins.find("optimizer", type)) type = found.component->type;
  }
  if (type == parts_.optimizer->manifest().type) return;
  throw RuntimeFault(where + ": was saved with optimizer " + type + ", this run uses " +
                     parts_.optimizer->manifest().type +
                     ". Resume with the same optimizer, or start from its weights alone with --init-from.");
}

/// The optimizer's states: what this rank needs, and of what is each rank's own that of all, so that ranks agree.
void Keep::check_states(const CheckpointLookup& lookup, const SavedRun& saved) {
  for (Piece& piece : parts_.store.pieces()) {
    const ParameterEntry& entry = parts_.store.entries()[piece.entry];
    if (begins_anew(entry, lookup)) continue;
    parts_.store.for_each_state(piece, [&](const StateSpec& spec, const at::Tensor& values) {
      if (!spec.scratch && !starts_anew(saved, lookup, entry.name, spec)) {
        lookup.require(entry.name, spec, state_shape(spec, entry, values), values.scalar_type());
      }
    });
  }
  for (const CompressionState& state : parts_.compressions.states_to_save()) {
    if (lookup.has(state.parameter, state.state)) lookup.require(state.parameter, state.state, state.shape);
  }
  if (!saved.writer.empty() || !saved.options.optimizer_states) return;
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank) lookup.require("", spec->name, {values->numel()});
    if (!spec->per_rank || saved.world_size != parts_.config.batch.world_size) continue;
    for (int rank = 0; rank < parts_.communicator->size(); ++rank) {
      lookup.require("", of_rank(spec->name, rank), {values->numel()});
    }
  }
}

/// The states of all ranks' generators, so that ranks agree.
void Keep::check_generators(const CheckpointLookup& lookup, const SavedRun& saved) const {
  for (const auto& [device, generator] : parts_.generators()) {
    const auto of_first = saved.generators.find(device);
    if (of_first != saved.generators.end()) {
      check_generator(generator, of_first->second, state_file(lookup.where()) + ": rng." + device);
    }
    for (int rank = 1; rank < parts_.communicator->size(); ++rank) {
      const std::string name = generator_state(device, rank);
      const at::Tensor bytes = lookup.find_whole(name);
      if (bytes.defined()) check_generator(generator, bytes, lookup.where() + ": " + name);
    }
  }
}

std::function<bool(const CheckpointTensor&)> Keep::taken_tensors(LoadOptions options) {
  std::map<std::string, StateSpec> specs;
  for (const StateSpec& spec : parts_.store.states()) specs[spec.name] = spec;
  std::map<std::string, const ParameterEntry*> entries;
  for (const ParameterEntry& entry : parts_.store.entries()) entries[entry.name] = &entry;
  return [specs, entries, options, rank = parts_.communicator->rank()](const CheckpointTensor& tensor) {
    if (tensor.state == kFileState) return rank == 0;
    const auto found = entries.find(tensor.parameter);
    if (found == entries.end()) return tensor.parameter.empty() || !is_of_another_rank(tensor.state, rank);
    const ParameterEntry& entry = *found->second;
    std::int64_t offset = entry.offset, numel = entry.master.numel();
    if (const auto spec = specs.find(tensor.state); spec != specs.end()) {
      if (!options.optimizer_states) return false;
      if (!is_cut(spec->second)) return true;  // each rank has all of it
      offset = spec->second.values_for(offset, entry.shape);
      numel = spec->second.values_for(numel, entry.shape);
    }
    return tensor.offset < offset + numel && offset < tensor.offset + tensor.values.numel();
  };
}

SavedRun Keep::check(const CheckpointContents& contents, const CheckpointLookup& lookup, LoadOptions options) {
  const std::string& where = lookup.where();
  check_format(contents.state, where);
  const StateReader state(contents.state, state_file(where));
  SavedRun saved = read_saved_run(state);
  saved.options = options;
  check_optimizer(saved, where);
  check_group_numbers(saved, where);
  if (const Json* saved_config = contents.state.find("config")) {
    const std::string conflict = elastic_conflict(*saved_config, parts_.config.effective);
    if (!conflict.empty()) throw RuntimeFault(where + ": " + conflict);
    check_model_config(*saved_config, parts_.config.effective, where);
  }
  check_model(parts_.model, contents, lookup, saved.without_frozen);
  carried_files_of(contents);  // refuses what is not a file's name, while nothing has changed
  check_states(lookup, saved);
  check_forward_tensors(lookup);
  check_generators(lookup, saved);
  return saved;
}

void Keep::load_sampler(const SavedRun& saved, const std::string& where) {
  const std::string had = saved.sampler ? saved.sampler->type : "none";
  const std::string has = parts_.config.run.sampler ? parts_.config.run.sampler->type : "none";
  if (parts_.sampler && had == has) return parts_.sampler->load(*saved.sampler, saved.progress.global_steps);
  if (had == has || parts_.communicator->rank() > 0 || !parts_.optimizer) return;
  log::warning(where + ": was saved with sampler " + had + ", this run has " + has +
               (parts_.sampler ? ", which goes on at its step " + std::to_string(parts_.sampler->steps()) + "."
                               : ": samples go on in the order of capstan.data."));
}

/// Components read their own texts. When one of them refuses, on any rank, all have again what they had.
void Keep::load_components(const SavedRun& saved, const std::string& where) {
  const bool ours = saved.writer.empty();
  const bool same_scheduler =
      saved.scheduler && parts_.config.scheduler && saved.scheduler->type == parts_.config.scheduler->type;
  const std::string optimizer_before = parts_.optimizer ? parts_.optimizer->save() : "",
                    schedule_before = parts_.schedule.save();
  const Json observers_before = parts_.observers.save(), compressions_before = parts_.compressions.save();
  std::optional<Sampler::Saved> sampler_before;
  if (parts_.sampler) sampler_before = parts_.sampler->save(parts_.progress.global_steps);
  try {
    as_one(*parts_.communicator, "load_checkpoint, components", [&] {
      try {
        if (parts_.optimizer && ours && saved.options.optimizer_states) {
          parts_.optimizer->load(saved.optimizer->state);
        }
        if (same_scheduler && ours && saved.options.schedule) parts_.schedule.load(saved.scheduler->state);
        parts_.observers.load(saved.observers);
        parts_.compressions.load(saved.compressions);
        load_sampler(saved, where);
      } catch (const PluginError& refusal) {
        throw RuntimeFault(state_file(where) + ": " + refusal.what());
      }
    });
  } catch (...) {
    if (parts_.optimizer) parts_.optimizer->load(optimizer_before);
    parts_.schedule.load(schedule_before);
    parts_.observers.load(observers_before);
    parts_.compressions.load(compressions_before);
    if (parts_.sampler) parts_.sampler->load(*sampler_before, parts_.progress.global_steps);
    throw;
  }
  warn_of_other_components(saved, where);
}

/// Parameters with their states: of each this rank's part.
void Keep::load_entries(const CheckpointLookup& lookup, const SavedRun& saved) {
  for (const SubGroup& sub_group : parts_.store.sub_groups()) {
    parts_.store.acquire(sub_group, lookup.strict() ? TileStaging::Show::kNothing : TileStaging::Show::kValues);
    for (Piece& piece : parts_.store.pieces(sub_group)) {
      const ParameterEntry& entry = parts_.store.entries()[piece.entry];
      const std::int64_t offset = entry.offset + piece.offset;
      if (begins_anew(entry, lookup)) continue;
      lookup.copy(entry.name, kParam, piece.master, offset);
      if (parts_.config.zero.stage > 0 && !parts_.config.zero.load_from_fp32_weights) {
        piece.master.copy_(piece.master.to(compute_dtype(parts_.config.precision)));
      }
      parts_.store.for_each_state(piece, [&](const StateSpec& spec, const at::Tensor& values) {
        if (spec.scratch) return;
        if (starts_anew(saved, lookup, entry.name, spec)) {
          values.fill_(spec.init);
          return;
        }
        lookup.copy(entry.name, spec.name, values, is_cut(spec) ? spec.values_for(offset, entry.shape) : 0);
      });
    }
    parts_.store.refresh_copies(sub_group);
    parts_.store.release(sub_group, true);
  }
}

bool Keep::begins_anew(const ParameterEntry& entry, const CheckpointLookup& lookup) const {
  return (!lookup.strict() || parts_.compressions.is_trained_state(entry.name)) && !lookup.has(entry.name, kParam);
}

/// A compression that the run had not when it was saved makes its states of the values that are loaded.
void Keep::load_compression_states(const CheckpointLookup& lookup) {
  parts_.store.set_initial(false);
  std::set<std::string> anew;
  for (const CompressionState& state : parts_.compressions.states_to_save()) {
    if (!lookup.has(state.parameter, state.state)) {
      anew.insert("compression '" + state.by + "'");
      parts_.compressions.begin_anew(state.by);
    } else {
      const std::int64_t from =
          state.parameter.empty() ? 0 : parts_.store.compressed_part(state.parameter).range.offset;
      lookup.copy(state.parameter, state.state, state.values, from);
    }
  }
  for (const NamedTensor& parameter : parts_.model.parameters()) {
    if (parameter.added && !lookup.has(parameter.name, kParam)) anew.insert("'" + parameter.name + "'");
  }
  if (parts_.communicator->rank() > 0) return;
  for (const std::string& name : anew) {
    log::warning(lookup.where() + ": holds no values of " + name + ", which begins anew.");
  }
}

void Keep::load_frozen(const CheckpointLookup& lookup) {
  std::int64_t kept = 0;
  for (std::size_t k = 0; k < parts_.store.frozen().size(); ++k) {
    const std::string& name = parts_.store.frozen()[k].name;
    if (!lookup.has(name, kParam)) {
      ++kept;
      continue;
    }
    parts_.store.set_frozen(k,
                            [&](const at::Tensor& to, std::int64_t offset) { lookup.copy(name, kParam, to, offset); });
  }
  if (kept == 0 || !lookup.strict() || parts_.communicator->rank() > 0) return;
  log::warning(lookup.where() + ": was saved without parameters that are not trained. The model's own values of " +
               std::to_string(kept) + " such parameters stay: load those that it was trained with before.");
}

/// States of the whole model. Those of each rank's own are of use to as many ranks only; others start anew.
void Keep::load_model_states(const CheckpointLookup& lookup, const SavedRun& saved) {
  std::string restarted;
  const bool ours = saved.writer.empty();
  for (const auto& [spec, values] : model_states()) {
    if (!saved.options.optimizer_states) {
      values->fill_(spec->init);
    } else if (!spec->per_rank && ours) {
      lookup.copy("", spec->name, *values);
    } else if (saved.world_size == parts_.config.batch.world_size && ours) {
      lookup.copy("", of_rank(spec->name, parts_.communicator->rank()), *values);
    } else {
      values->fill_(spec->init);
      restarted += (restarted.empty() ? "" : ", ") + spec->name;
    }
  }
  if (!restarted.empty() && !ours && parts_.communicator->rank() == 0) {
    log::warning(lookup.where() + ": " + restarted + " of " + parts_.optimizer->where() + " cannot be taken from " +
                 saved.writer + ", which saves those of rank 0 alone: they start anew.");
  } else if (!restarted.empty() && parts_.communicator->rank() == 0) {
    log::info(lookup.where() + ": " + restarted + " of " + parts_.optimizer->where() + " belong to each rank of " +
              std::to_string(saved.world_size) + " and start anew with " +
              std::to_string(parts_.config.batch.world_size) + ".");
  }
}

/// A rank, or a device, that was not there before goes on with the generator that it has.
void Keep::load_generators(const CheckpointLookup& lookup, const SavedRun& saved) {
  const int rank = parts_.communicator->rank();
  for (auto& [device, generator] : parts_.generators()) {
    at::Tensor bytes;
    if (rank > 0) {
      bytes = lookup.find_whole(generator_state(device, rank));
    } else if (const auto found = saved.generators.find(device); found != saved.generators.end()) {
      bytes = found->second;
    }
    if (bytes.defined()) generator.set_state(bytes.clone());
  }
}

void Keep::refuse_half_loaded() const {
  if (!half_loaded_) return;
  throw RuntimeFault(
      "an exception has ended the last load_checkpoint or load_weights after it had begun to change the engine, which "
      "is now neither what it was nor what was to be loaded. Load a checkpoint before the engine is used.");
}

/// All of it but the components' texts and what the ranks do together.
void Keep::apply(const CheckpointLookup& lookup, const SavedRun& saved) {
  const std::string& where = lookup.where();
  steps_.abandon_step();
  load_entries(lookup, saved);
  if (!saved.options.optimizer_states) parts_.store.start_states();
  parts_.store.settle_stores();
  load_model_states(lookup, saved);
  load_frozen(lookup);
  load_forward_tensors(lookup, saved);
  warn_of_other_buffers(lookup);
  warn_of_other_states(lookup, saved);
  load_compression_states(lookup);
  const std::int64_t schedule_stood_at = parts_.progress.updates - parts_.schedule.begins_at();
  parts_.progress = saved.progress;
  if (!saved.counts_samples) {
    parts_.progress.global_samples = saved.progress.global_steps * parts_.config.batch.train_batch_size;
  }
  parts_.schedule.begin_at(saved.options.schedule ? saved.schedule_begins_at
                                                  : saved.progress.updates - schedule_stood_at);
  steps_.moved();
  if (saved.loss_scale) parts_.scaler.restore(*saved.loss_scale);
  restore_groups(saved, where);
  load_generators(lookup, saved);
  if (saved.world_size != parts_.config.batch.world_size && parts_.communicator->rank() == 0) {
    log::info(where + ": was saved by " + std::to_string(saved.world_size) +
              (saved.world_size == 1 ? " process and goes on with " : " processes and goes on with ") +
              std::to_string(parts_.config.batch.world_size) + ".");
  }
  parts_.schedule.apply(parts_.progress.updates);
}

void Keep::take_over(const CheckpointContents& contents, const SavedRun& saved, const std::string& where,
                     const std::string& call) {
  load_components(saved, where);
  half_loaded_ = true;
  const bool strict = saved.options.strict;
  const CheckpointLookup lookup(contents, where, strict);
  as_one(*parts_.communicator, call + ", apply", [&] { apply(lookup, saved); });
  if (parts_.communicator->rank() == 0) {
    for (const std::string& note : notes_on_types(contents, parts_.store)) log::info(where + ": " + note);
  }
  if (!strict && parts_.communicator->rank() == 0) warn_of_differences(parts_.model, contents, lookup);
  parts_.store.refresh_all();
  half_loaded_ = false;
  wants_teacher_ = false;
  note_step(parts_.progress.global_steps + 1);
  steps_.tell(CAPSTAN_EVENT_LOADED);
  resumed_at_ = parts_.progress.global_samples;
  if (saved.writer.empty()) run_id_ = saved.run;
  files_.clear();
  if (parts_.communicator->rank() == 0) {
    // A copy, so that the checkpoint's file need not stay mapped.
    for (const auto& [name, bytes] : carried_files_of(contents)) files_.emplace(name, bytes.clone());
  }
  as_one(*parts_.communicator, call + ", monitors", [&] { steps_.renew_monitors(); });
}

Json Keep::load(const std::string& dir, const std::string& tag_given,
                const std::function<void(const Json&)>& check_client_state, LoadOptions options) {
  background_save_.finish();
  snapshots_.forget();
  at::NoGradGuard no_grad;
  if (const std::string failure = parts_.store.give_up_what_failed(); !failure.empty()) {
    log::warning("load_checkpoint: what was under way has failed, and the checkpoint takes its place: " + failure);
  }
  const std::string completed = nodes_store() ? complete_checkpoint(dir, tag_given, *parts_.communicator) : tag_given;
  std::string where;
  CheckpointContents contents;
  SavedRun saved;
  as_one(*parts_.communicator, "load_checkpoint, check", [&] {
    const std::string tag = completed.empty() ? latest_tag(dir) : completed;
    where = std::filesystem::path(dir) / tag;
    const auto takes = taken_tensors(options);
    const OtherNames names(parts_.model);
    contents = read_checkpoint(dir, tag, names.takes(takes),
                               options.optimizer_states ? names.theirs(trained_names()) : TrainedNames());
    names.rename(contents, takes);
    saved = check(contents, CheckpointLookup(contents, where, options.strict), options);
    if (const Json* of_program = contents.state.find("client_state"); of_program && check_client_state) {
      try {
        check_client_state(*of_program);
      } catch (const RuntimeFault& fault) {
        throw RuntimeFault(state_file(where) + ": " + fault.what());
      }
    }
  });
  if (parts_.communicator->rank() == 0) {
    for (const char* list : {kWeightNotes, kNotes}) log_notes(contents.state, list, where);
  }
  take_over(contents, saved, where, "load_checkpoint");
  if (options.optimizer_states) warn_of_other_numbers(contents, where);
  note_checkpoint(where);
  const Json* client_state = contents.state.find("client_state");
  return client_state ? *client_state : Json::object();
}

}  // namespace capstan
