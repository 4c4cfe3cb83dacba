// Collects what a checkpoint of an engine holds, and writes it.

#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>

#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/as_one.hpp"
#include "core/errors.hpp"
#include "core/keep/keep.hpp"
#include "core/log.hpp"
#include "core/monitor/monitor_host.hpp"
#include "core/registry/guilty_plugin.hpp"

namespace capstan {
namespace {

Json groups_json(const ParameterGroups& groups) {
  Json list = Json::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Json group = Json::object();
    group["base_lr"] = groups.base_lr(i);
    group["numbers"] = Json::object();
    for (const auto& [name, values] : groups.written(i)) {
      Json& list = group["numbers"][name] = Json::array();
      for (const double value : values) list.push_back(value);
    }
    list.push_back(std::move(group));
  }
  return list;
}

}  // namespace

std::vector<std::pair<const StateSpec*, at::Tensor*>> Keep::model_states() {
  std::vector<std::pair<const StateSpec*, at::Tensor*>> states;
  std::size_t index = 0;
  for (const StateSpec& spec : parts_.store.states()) {
    if (spec.extent != StateSpec::Extent::kModel) continue;
    at::Tensor& values = parts_.store.model_state_tensors()[index++];
    if (!spec.scratch) states.emplace_back(&spec, &values);
  }
  return states;
}

/// What is saved of a tensor of entry i, from element `from` on: the values, or where they are not in one piece of
/// memory how to read them. `whole` tells dtype and shape.
void Keep::add_values(CheckpointContents& contents, CheckpointTensor tensor, std::size_t i, int which,
                      const at::Tensor& whole, std::int64_t from, std::int64_t count,
                      const std::shared_ptr<ValuesRoom>& room) {
  if (parts_.store.is_here(i, which)) {
    tensor.values = whole.view({-1}).narrow(0, from, count);
  } else {
    tensor.values = values_elsewhere({count}, whole.scalar_type());
    tensor.read = [this, i, which, from, room, dtype = whole.scalar_type()](std::int64_t begin, std::int64_t numel) {
      const at::Tensor values = room->of(numel, dtype);
      parts_.store.read_stored(i, which, from + begin, values);
      return values;
    };
  }
  contents.tensors.push_back(std::move(tensor));
}

/// Parameters with their states: of each this rank's part. Where every rank holds all of it, each saves a part all the
/// same.
void Keep::add_entries(CheckpointContents& contents) {
  const bool first_rank = parts_.communicator->rank() == 0;
  const auto room = std::make_shared<ValuesRoom>();
  for (std::size_t i = 0; i < parts_.store.entries().size(); ++i) {
    const ParameterEntry& entry = parts_.store.entries()[i];
    const Range part = parts_.store.saved_part(i);
    const bool empty = entry.parameter.numel() == 0;
    if (part.numel == 0 && !(empty && first_rank)) continue;
    const std::int64_t from = part.offset - entry.offset;
    add_values(contents, {entry.name, kParam, entry.shape, part.offset, {}}, i, ParameterStore::kMaster, entry.master,
               from, part.numel, room);
    int which = -1;
    for (const StateSpec& spec : parts_.store.states()) {
      if (spec.extent == StateSpec::Extent::kModel) continue;
      const at::Tensor& of_piece = parts_.store.kept(i, ++which);
      if (!of_piece.defined() || spec.scratch || (!is_cut(spec) && part.offset > 0)) continue;
      const auto count = [&](std::int64_t elements) { return spec.values_for(elements, entry.shape); };
      const bool cut = is_cut(spec);
      add_values(contents,
                 {entry.name, spec.name, state_shape(spec, entry, of_piece), cut ? count(part.offset) : 0, {}}, i,
                 which, of_piece, cut ? count(from) : 0, cut ? count(part.numel) : of_piece.numel(), room);
    }
  }
}

/// States of compressions: of those with a value an element this rank's part, of whole ones rank 0's.
void Keep::add_compression_states(CheckpointContents& contents) {
  for (const CompressionState& state : parts_.compressions.states_to_save()) {
    if (state.parameter.empty()) {
      if (parts_.communicator->rank() == 0) contents.tensors.push_back({"", state.state, state.shape, 0, state.values});
      continue;
    }
    const CompressedPart& part = parts_.store.compressed_part(state.parameter);
    const Range saved = parts_.store.saved_part(part.entry);
    if (saved.numel == 0) continue;
    contents.tensors.push_back({state.parameter, state.state, state.shape, saved.offset,
                                state.values.narrow(0, saved.offset - part.range.offset, saved.numel)});
  }
}

/// Frozen parameters as they are: rank 0 saves them, at stage 3 each rank its parts.
void Keep::add_frozen(CheckpointContents& contents) {
  for (std::size_t k = 0; k < parts_.store.frozen().size(); ++k) {
    const NamedTensor& frozen = parts_.store.frozen()[k];
    const Range part = parts_.store.frozen_part(k);
    const bool first = parts_.communicator->rank() == 0;
    const bool saves = parts_.store.parts_only() ? part.numel > 0 || (frozen.tensor.numel() == 0 && first) : first;
    if (!saves) continue;
    contents.tensors.push_back(
        {frozen.name, kParam, frozen.tensor.sizes().vec(), part.offset, parts_.store.frozen_values(k)});
  }
}

/// The tag of rank 0, after what checkpoint.tag_validation asks for.
std::string Keep::agreed_tag(const std::string& tag) {
  const auto tags = parts_.communicator->all_gather_text("save_checkpoint, tag", tag);
  for (std::size_t rank = 1; rank < tags.size(); ++rank) {
    if (tags[rank] == tags[0] || parts_.config.checkpoint.tag_validation == "Ignore") continue;
    const std::string text = "checkpoint tag: rank " + std::to_string(rank) + " saves '" + tags[rank] +
                             "' and rank 0 '" + tags[0] +
                             "'. A tag that differs by rank cannot be loaded by another "
                             "number of processes; give all of them the same.";
    if (parts_.config.checkpoint.tag_validation == "Fail") throw RuntimeFault(text);
    log::warning(text + " Saved as '" + tags[0] + "'.");
  }
  return tags[0];
}

/// Now, or from a copy while training goes on.
void Keep::write(const std::string& dir, const std::string& tag, CheckpointContents contents) {
  const bool leads = nodes_store() ? parts_.communicator->local_rank() == 0 : parts_.communicator->rank() == 0;
  const auto write_with = [dir, tag, leads](const CheckpointContents& what, Communicator& ranks) {
    write_checkpoint(dir, tag, what, {ranks.rank(), leads, [&](const std::string& phase, const std::string& text) {
                                        return ranks.all_gather_text(phase, text, "save_checkpoint");
                                      }});
    note_checkpoint((std::filesystem::path(dir) / tag).string());
  };
  const bool later = background_save_.takes(contents, parts_.config, *parts_.communicator);
  // Files are written from host memory; later, training will have gone on with the tensors themselves.
  std::vector<CheckpointTensor*> elsewhere;
  std::vector<at::Tensor> values;
  for (CheckpointTensor& tensor : contents.tensors) {
    if (tensor.read) continue;
    if (!tensor.values.is_cpu()) {
      elsewhere.push_back(&tensor);
      values.push_back(tensor.values);
    } else if (later) {
      tensor.values = tensor.values.to(at::kCPU, tensor.values.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
  }
  values = parts_.accelerator->to_host(values);
  for (std::size_t i = 0; i < values.size(); ++i) elsewhere[i]->values = std::move(values[i]);
  if (!later) return write_with(contents, *parts_.communicator);
  if (!saving_ranks_) saving_ranks_ = parts_.communicator->duplicate_for_thread("saving");
  background_save_.start([write_with, copy = std::move(contents), ranks = saving_ranks_] { write_with(copy, *ranks); });
}

/// What belongs to this rank alone, and from rank 0 what all ranks have alike.
void Keep::add_rest(CheckpointContents& contents, const char* call) {
  const int rank = parts_.communicator->rank();
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank && rank > 0) continue;
    const std::string name = spec->per_rank ? of_rank(spec->name, rank) : spec->name;
    contents.tensors.push_back({"", name, {values->numel()}, 0, *values});
  }
  add_forward_tensors(contents, call);
  for (const auto& [name, bytes] : files_) contents.tensors.push_back({name, kFileState, {bytes.numel()}, 0, bytes});
  // Rank 0's generators are in state.json.
  if (rank == 0) return;
  for (const auto& [device, generator] : parts_.generators()) {
    const at::Tensor values = generator.get_state();
    contents.tensors.push_back({"", generator_state(device, rank), values.sizes().vec(), 0, values});
  }
}

/// The text of state.json: what read_saved_run() reads, and what describes the run.
Json Keep::run_state(const Json& client_state) const {
  Json state = Json::object();
  state["format"] = kStateFormat;
  if (!run_id_.empty()) state["run"] = run_id_;
  state["model"] = parts_.model.description();
  state["global_steps"] = parts_.progress.global_steps;
  state["updates"] = parts_.progress.updates;
  state["skipped_steps"] = parts_.progress.skipped_steps;
  state["global_samples"] = parts_.progress.global_samples;
  state["world_size"] = parts_.config.batch.world_size;
  state["loss_scaler"] = parts_.scaler.save();
  state["groups"] = groups_json(parts_.groups);
  if (parts_.optimizer) {
    state["optimizer"]["type"] = parts_.optimizer->manifest().type;
    state["optimizer"]["state"] = parts_.optimizer->save();
  }
  if (parts_.config.scheduler) {
    state["scheduler"]["type"] = parts_.config.scheduler->type;
    state["scheduler"]["state"] = parts_.schedule.save();
    if (parts_.schedule.begins_at() != 0) state["scheduler"]["begins_at"] = parts_.schedule.begins_at();
  }
  state["observers"] = parts_.observers.save();
  if (parts_.sampler) state["sampler"] = sampler_json(parts_.sampler->save(parts_.progress.global_steps));
  if (!parts_.compressions.empty()) {
    state["compressions"] = parts_.compressions.save();
    state["modules"] = parts_.compressions.modules();
    state["trained_states"] = Json::array();
    for (const CompressionPlan::State* trained : parts_.compressions.trained()) {
      state["trained_states"].push_back(trained->parameter);
    }
  }
  for (const auto& [device, generator] : parts_.generators()) state["rng"][device] = hex_of(generator.get_state());
  state["config"] = parts_.config.effective;
  if (!parts_.model.tied().empty()) {
    state["tied"] = Json::object();
    for (const auto& [name, first] : parts_.model.tied()) state["tied"][name] = first;
  }
  state["client_state"] = client_state;
  return state;
}

void Keep::refuse_to_save(const char* call) const {
  refuse_half_loaded();
  if (steps_.micro_steps_done() == 0) return;
  throw RuntimeFault(std::string(call) + " in the middle of a step (" + std::to_string(steps_.micro_steps_done()) +
                     " of " + std::to_string(parts_.config.batch.gradient_accumulation_steps) +
                     " micro-batches done): its gradients would be lost. Save after step().");
}

void Keep::settle_to_save(const char* call) {
  parts_.store.settle();
  if (!parts_.store.readable_after_release()) {
    as_one(
        *parts_.communicator, std::string(call) + ", stores", [&] { parts_.store.settle_stores(); }, call);
  }
  steps_.synchronize();
}

CheckpointContents Keep::saved_contents(const char* call, bool frozen) {
  CheckpointContents contents;
  add_entries(contents);
  add_compression_states(contents);
  if (frozen) add_frozen(contents);
  add_rest(contents, call);
  return contents;
}

std::string Keep::save(const std::string& dir, const std::string& tag_given, const Json& client_state, bool frozen) {
  refuse_to_save("save_checkpoint");
  background_save_.finish();
  at::NoGradGuard no_grad;
  settle_to_save("save_checkpoint");
  steps_.tell(CAPSTAN_EVENT_SAVE_BEGIN);
  const std::string tag =
      agreed_tag(tag_given.empty() ? "global_step" + std::to_string(parts_.progress.global_steps) : tag_given);
  CheckpointContents contents = saved_contents("save_checkpoint", frozen);
  contents.state = run_state(client_state);
  if (!frozen) contents.state["without_frozen"] = 1;
  // A run that goes on from here must find the rows of all steps before.
  if (MonitorHost* monitors = steps_.opened_monitors()) monitors->flush();
  write(dir, tag, std::move(contents));
  steps_.tell(CAPSTAN_EVENT_SAVE_END);
  return tag;
}

}  // namespace capstan
