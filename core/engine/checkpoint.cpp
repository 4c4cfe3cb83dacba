// What a checkpoint of an engine holds, and how an engine becomes what a checkpoint says.

#include "core/checkpoint/checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "core/checkpoint/hf_folder.hpp"
#include "core/checkpoint/node_storage.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/config/resolve/elastic.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/dtype_names.hpp"

namespace capstan {
namespace {

constexpr int kFormat = 1;  // of state.json
constexpr const char* kParam = "param";
constexpr const char* kBuffer = "buffer";

std::string shape_text(at::IntArrayRef shape) { return c10::str(shape); }

std::string to_hex(const at::Tensor& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto* data = static_cast<const std::uint8_t*>(bytes.const_data_ptr());
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i) text += {kDigits[data[i] >> 4], kDigits[data[i] & 15]};
  return text;
}

at::Tensor from_hex(const std::string& text) {
  const auto digit = [](char c) -> int { return c <= '9' ? c - '0' : c - 'a' + 10; };
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size() / 2)}, at::kByte);
  auto* data = static_cast<std::uint8_t*>(bytes.mutable_data_ptr());
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    data[i] = static_cast<std::uint8_t>(digit(text[2 * i]) * 16 + digit(text[2 * i + 1]));
  }
  return bytes;
}

/// Finds a checkpoint's tensors by parameter and state, in however many parts, and names what does not fit.
class Lookup {
 public:
  Lookup(const CheckpointContents& contents, std::string where) : where_(std::move(where)) {
    for (const CheckpointTensor& tensor : contents.tensors)
      tensors_[{tensor.parameter, tensor.state}].push_back(&tensor);
  }

  bool has(const std::string& parameter, const std::string& state) const {
    return tensors_.contains({parameter, state});
  }

  /// Throws unless it is there, whole and of that shape.
  void require(const std::string& parameter, const std::string& state, at::IntArrayRef shape) const {
    const auto found = tensors_.find({parameter, state});
    const std::string what = "'" + parameter + "'" + (state == kParam ? "" : ", state '" + state + "'");
    if (found == tensors_.end()) {
      throw RuntimeFault(where_ + ": holds nothing for " + what + ". It was saved from another model or optimizer.");
    }
    std::int64_t elements = 0;
    for (const CheckpointTensor* part : found->second) elements += part->values.numel();
    const CheckpointTensor& tensor = *found->second.front();
    if (at::IntArrayRef(tensor.shape) != shape) {
      throw RuntimeFault(where_ + ": " + what + " has shape " + shape_text(tensor.shape) + ", this model's is " +
                         shape_text(shape) + ". It was saved from another model.");
    }
    if (elements != c10::multiply_integers(shape)) {
      throw RuntimeFault(where_ + ": " + what + " is there only in part (" + std::to_string(elements) + " of " +
                         std::to_string(c10::multiply_integers(shape)) + " elements): a rank's file is missing.");
    }
  }

  /// Copies elements [offset, offset + to.numel()) of what require() has found.
  void copy(const std::string& parameter, const std::string& state, at::Tensor to, std::int64_t offset = 0) const {
    const std::int64_t end = offset + to.numel();
    // A tensor that is not contiguous is whole, and so is what is copied to it.
    at::Tensor flat = to.is_contiguous() ? to.view({-1}) : at::empty({to.numel()}, to.options());
    for (const CheckpointTensor* part : tensors_.at({parameter, state})) {
      const std::int64_t from = std::max(offset, part->offset);
      const std::int64_t until = std::min(end, part->offset + part->values.numel());
      if (from >= until) continue;
      flat.narrow(0, from - offset, until - from)
          .copy_(part->values.reshape({-1}).narrow(0, from - part->offset, until - from));
    }
    if (!to.is_contiguous()) to.copy_(flat.view(to.sizes()));
  }

 private:
  std::string where_;
  std::map<std::pair<std::string, std::string>, std::vector<const CheckpointTensor*>> tensors_;
};

std::string of_rank(const std::string& name, int rank) { return name + " of rank " + std::to_string(rank); }
/// The state of a rank's generator on a device: the CPU's has no name of its own.
std::string generator_state(const std::string& device, int rank) {
  return of_rank(device == "cpu" ? "generator" : device + " generator", rank);
}

/// Whether a state has an element for each of the parameter's, and so is cut as it is.
bool is_cut(const StateSpec& spec) { return spec.like == StateSpec::Like::kParameter; }

std::vector<std::int64_t> state_shape(const StateSpec& spec, const ParameterEntry& entry, const at::Tensor& values) {
  return is_cut(spec) ? entry.shape : std::vector<std::int64_t>{values.numel()};
}

bool saved(const StateSpec& spec) { return spec.extent != StateSpec::Extent::kModel && !spec.scratch; }

Json groups_json(const ParameterGroups& groups) {
  Json list = Json::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Json group = Json::object();
    group["base_lr"] = groups.base_lr(i);
    list.push_back(std::move(group));
  }
  return list;
}

}  // namespace

std::vector<std::pair<const StateSpec*, at::Tensor*>> Engine::State::model_states() {
  std::vector<std::pair<const StateSpec*, at::Tensor*>> states;
  std::size_t index = 0;
  for (const StateSpec& spec : store.states()) {
    if (spec.extent != StateSpec::Extent::kModel) continue;
    at::Tensor& values = store.model_state_tensors()[index++];
    if (!spec.scratch) states.emplace_back(&spec, &values);
  }
  return states;
}

/// Parameters with their states: of each this rank's part.
void Engine::State::add_entries(CheckpointContents& contents) {
  const bool first_rank = communicator->rank() == 0;
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
      ParameterEntry& entry = store.entries()[i];
      const Range part = store.saved_part(i);
      const bool empty = entry.parameter.numel() == 0;
      if (part.numel == 0 && !(empty && first_rank)) continue;
      // Where every rank holds all of it, each saves a part all the same.
      const auto cut = [&](const at::Tensor& whole) {
        return whole.view({-1}).narrow(0, part.offset - entry.offset, part.numel);
      };
      contents.tensors.push_back({entry.name, kParam, entry.shape, part.offset, cut(entry.master)});
      std::size_t index = 0;
      for (const StateSpec& spec : store.states()) {
        if (spec.extent == StateSpec::Extent::kModel) continue;
        const at::Tensor& values = entry.state[index++];
        if (!values.defined() || !saved(spec)) continue;
        if (!is_cut(spec) && part.offset > 0) continue;
        const at::Tensor mine = is_cut(spec) ? cut(values) : values;
        // States kept elsewhere share one staging buffer: copy before the next sub-group overwrites it.
        contents.tensors.push_back({entry.name, spec.name, state_shape(spec, entry, values),
                                    is_cut(spec) ? part.offset : 0,
                                    store.readable_after_release() ? mine : mine.clone()});
      }
    }
    store.release(sub_group, false);
  }
}

/// Frozen parameters as they are: rank 0 saves them, at stage 3 each rank its parts.
void Engine::State::add_frozen(CheckpointContents& contents) {
  for (std::size_t k = 0; k < store.frozen().size(); ++k) {
    const NamedTensor& frozen = store.frozen()[k];
    const Range part = store.frozen_part(k);
    const bool first = communicator->rank() == 0;
    const bool saves = store.parts_only() ? part.numel > 0 || (frozen.tensor.numel() == 0 && first) : first;
    if (!saves) continue;
    contents.tensors.push_back({frozen.name, kParam, frozen.tensor.sizes().vec(), part.offset, store.frozen_values(k)});
  }
}

/// What all ranks have alike: states of the whole model, buffers, parameters that are not of floating point.
void Engine::State::add_what_is_everywhere(CheckpointContents& contents) {
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank) contents.tensors.push_back({"", spec->name, {values->numel()}, 0, *values});
  }
  for (const NamedTensor& buffer : model.buffers()) {
    contents.tensors.push_back({buffer.name, kBuffer, buffer.tensor.sizes().vec(), 0, buffer.tensor.contiguous()});
  }
  for (const NamedTensor& parameter : model.parameters()) {
    if (at::isFloatingType(parameter.tensor.scalar_type())) continue;
    contents.tensors.push_back(
        {parameter.name, kParam, parameter.tensor.sizes().vec(), 0, parameter.tensor.detach().contiguous()});
  }
}

/// The tag of rank 0, after what checkpoint.tag_validation asks for.
std::string Engine::State::agreed_tag(const std::string& tag) {
  const auto tags = communicator->all_gather_text("save_checkpoint, tag", tag);
  for (std::size_t rank = 1; rank < tags.size(); ++rank) {
    if (tags[rank] == tags[0] || config.checkpoint.tag_validation == "Ignore") continue;
    const std::string text = "checkpoint tag: rank " + std::to_string(rank) + " saves '" + tags[rank] +
                             "' and rank 0 '" + tags[0] +
                             "'. A tag that differs by rank cannot be loaded by another "
                             "number of processes; give all of them the same.";
    if (config.checkpoint.tag_validation == "Fail") throw RuntimeFault(text);
    log::warning(text + " Saved as '" + tags[0] + "'.");
  }
  return tags[0];
}

bool Engine::State::saves_in_background(const CheckpointContents& contents) {
  const bool decoupled = config.checkpoint.writer && config.checkpoint.writer->decoupled;
  if (!config.datastates_ckpt) return decoupled;
  if (!config.datastates_ckpt->host_cache_size) return true;
  double bytes = 0;
  for (const CheckpointTensor& tensor : contents.tensors) bytes += static_cast<double>(tensor.values.nbytes());
  // Ranks that write now and ranks that write later would wait for each other.
  for (const std::string& text : communicator->all_gather_text("save_checkpoint, size", std::to_string(bytes))) {
    bytes = std::max(bytes, std::stod(text));
  }
  const double cache = *config.datastates_ckpt->host_cache_size;
  if (bytes <= cache * 1e9) return true;
  log::warning("datastates_ckpt.host_cache_size: is " + c10::str(cache) +
               " GB, and a copy of what a rank saves takes " + c10::str(bytes / 1e9) +
               " GB. Training waits until the checkpoint is written.");
  return false;
}

/// Now, or from a copy while training goes on.
void Engine::State::write(const std::string& dir, const std::string& tag, CheckpointContents contents) {
  const bool leads = nodes_store() ? communicator->local_rank() == 0 : communicator->rank() == 0;
  const auto write_with = [dir, tag, leads](const CheckpointContents& what, Communicator& ranks) {
    write_checkpoint(dir, tag, what, {ranks.rank(), leads, [&](const std::string& phase, const std::string& text) {
                                        return ranks.all_gather_text(phase, text, "save_checkpoint");
                                      }});
  };
  const bool later = saves_in_background(contents);
  // Files are written from host memory; later, training will have gone on with the tensors themselves.
  for (CheckpointTensor& tensor : contents.tensors) {
    if (later || !tensor.values.is_cpu())
      tensor.values = tensor.values.to(at::kCPU, tensor.values.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  if (!later) return write_with(contents, *communicator);
  if (!saving_ranks) saving_ranks = communicator->twin("saving");
  background_save.start([write_with, copy = std::move(contents), ranks = saving_ranks] { write_with(copy, *ranks); });
}

std::string Engine::State::save(const std::string& dir, const std::string& tag_given, const Json& client_state) {
  if (under_way.micro_step != 0) {
    throw RuntimeFault("save_checkpoint in the middle of a step (" + std::to_string(under_way.micro_step) + " of " +
                       std::to_string(config.batch.gradient_accumulation_steps) +
                       " micro-batches done): its gradients would be lost. Save after step().");
  }
  background_save.finish();
  at::NoGradGuard no_grad;
  store.settle();
  synchronize();
  emit(CAPSTAN_EVENT_SAVE_BEGIN);
  const std::string tag =
      agreed_tag(tag_given.empty() ? "global_step" + std::to_string(progress.global_steps) : tag_given);

  CheckpointContents contents;
  add_entries(contents);
  add_frozen(contents);
  const int rank = communicator->rank();
  for (const auto& [spec, values] : model_states()) {
    if (spec->per_rank) contents.tensors.push_back({"", of_rank(spec->name, rank), {values->numel()}, 0, *values});
  }
  if (rank > 0) {
    for (const auto& [device, generator] : generators()) {
      const at::Tensor values = generator.get_state();
      contents.tensors.push_back({"", generator_state(device, rank), values.sizes().vec(), 0, values});
    }
  } else {
    add_what_is_everywhere(contents);
  }

  Json& state = contents.state;
  state["format"] = kFormat;
  state["model"] = model.description();
  state["global_steps"] = progress.global_steps;
  state["updates"] = progress.updates;
  state["skipped_steps"] = progress.skipped_steps;
  state["global_samples"] = progress.global_samples;
  state["world_size"] = config.batch.world_size;
  state["loss_scaler"] = scaler.save();
  state["groups"] = groups_json(groups);
  if (optimizer) {
    state["optimizer"]["type"] = optimizer->manifest().type;
    const auto* table = optimizer->vtable<capstan_optimizer>();
    state["optimizer"]["state"] =
        !CAPSTAN_HAS(table, save)
            ? std::string()
            : plugin_text(optimizer_where + ", save", [&](capstan_sink* sink, capstan_error* error) {
                return table->save(optimizer->self(), sink, error);
              });
  }
  if (config.scheduler) {
    state["scheduler"]["type"] = config.scheduler->type;
    state["scheduler"]["state"] = schedule.save();
  }
  state["observers"] = observers.save();
  for (const auto& [device, generator] : generators()) state["rng"][device] = to_hex(generator.get_state());
  state["config"] = config.effective;
  state["client_state"] = client_state;
  // A run that goes on from here must find the rows of all steps before.
  if (monitors) monitors->flush();
  write(dir, tag, std::move(contents));
  emit(CAPSTAN_EVENT_SAVE_END);
  return tag;
}

/// States of the whole model. Those of each rank's own are of use to as many ranks only; others start anew.
void Engine::State::load_model_states(const CheckpointContents& contents, const std::string& where) {
  const Lookup lookup(contents, where);
  const bool same_ranks = contents.state.at("world_size") == Json(config.batch.world_size);
  std::string restarted;
  for (const auto& [spec, values] : model_states()) {
    if (!spec->per_rank) {
      lookup.require("", spec->name, {values->numel()});
      lookup.copy("", spec->name, *values);
    } else if (const std::string name = of_rank(spec->name, communicator->rank()); same_ranks) {
      lookup.require("", name, {values->numel()});
      lookup.copy("", name, *values);
    } else {
      values->fill_(spec->init);
      restarted += (restarted.empty() ? "" : ", ") + spec->name;
    }
  }
  if (!restarted.empty() && communicator->rank() == 0) {
    log::info(where + ": " + restarted + " of " + optimizer_where + " belong to each rank of " +
              contents.state.at("world_size").dump() + " and start anew with " +
              std::to_string(config.batch.world_size) + ".");
  }
}

void Engine::State::load_generator(const Json& state, const CheckpointContents& contents) {
  // A rank, or a device, that was not there before goes on with the generator that it has.
  for (auto& [device, generator] : generators()) {
    if (communicator->rank() == 0) {
      const Json* saved = state.at("rng").find(device);
      if (saved) generator.set_state(from_hex(saved->as_string()));
      continue;
    }
    for (const CheckpointTensor& tensor : contents.tensors) {
      if (tensor.parameter.empty() && tensor.state == generator_state(device, communicator->rank())) {
        generator.set_state(tensor.values.clone());
      }
    }
  }
}

bool Engine::State::nodes_store() const { return config.checkpoint.use_node_local_storage && communicator->size() > 1; }

Json Engine::State::load(const std::string& dir, const std::string& tag_given) {
  background_save.finish();
  at::NoGradGuard no_grad;
  store.settle();
  const std::string tag = nodes_store()       ? complete_checkpoint(dir, tag_given, *communicator)
                          : tag_given.empty() ? latest_tag(dir)
                                              : tag_given;
  const CheckpointContents contents = read_checkpoint(dir, tag);
  const std::string where = dir + "/" + tag;
  const Json& state = contents.state;
  const auto count = [&](const char* key) { return state.at(key).as_integer(); };
  if (state.find("format") == nullptr || state.at("format") != Json(kFormat)) {
    throw RuntimeFault(where + "/state.json: its format is " +
                       (state.find("format") ? state.at("format").dump() : std::string("missing")) +
                       ", this release reads format " + std::to_string(kFormat) + ".");
  }

  // Everything is found and compared before anything is changed.
  const Lookup lookup(contents, where);
  const Json* saved_optimizer = state.find("optimizer");
  if (optimizer) {
    const std::string saved_type = saved_optimizer ? saved_optimizer->at("type").as_string() : "none";
    if (saved_type != optimizer->manifest().type) {
      throw RuntimeFault(where + ": was saved with optimizer " + saved_type + ", this run uses " +
                         optimizer->manifest().type +
                         ". Resume with the same optimizer, or start from its weights "
                         "alone with --init-from.");
    }
  }
  if (const Json* saved_config = state.find("config")) {
    const std::string conflict = elastic_conflict(*saved_config, config.effective);
    if (!conflict.empty()) throw RuntimeFault(where + ": " + conflict);
  }
  std::set<std::string> known;
  for (const NamedTensor& parameter : model.parameters()) {
    lookup.require(parameter.name, kParam, parameter.tensor.sizes());
    known.insert(parameter.name);
  }
  for (const NamedTensor& buffer : model.buffers()) lookup.require(buffer.name, kBuffer, buffer.tensor.sizes());
  for (const CheckpointTensor& tensor : contents.tensors) {
    if (tensor.state == kParam && !known.contains(tensor.parameter)) {
      throw RuntimeFault(where + ": holds parameter '" + tensor.parameter +
                         "', which this model does not have. It was saved from another model.");
    }
  }
  for (const ParameterEntry& entry : store.entries()) {
    std::size_t index = 0;
    for (const StateSpec& spec : store.states()) {
      if (spec.extent == StateSpec::Extent::kModel) continue;
      const at::Tensor& values = entry.state[index++];
      if (values.defined() && saved(spec)) lookup.require(entry.name, spec.name, state_shape(spec, entry, values));
    }
  }

  abandon_step();
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
      ParameterEntry& entry = store.entries()[i];
      lookup.copy(entry.name, kParam, entry.master, entry.offset);
      if (config.zero.stage > 0 && !config.zero.load_from_fp32_weights) {
        entry.master.copy_(entry.master.to(compute_dtype(config.precision)));
      }
      std::size_t index = 0;
      for (const StateSpec& spec : store.states()) {
        if (spec.extent == StateSpec::Extent::kModel) continue;
        at::Tensor& values = entry.state[index++];
        if (!values.defined() || !saved(spec)) continue;
        lookup.copy(entry.name, spec.name, values, is_cut(spec) ? entry.offset : 0);
      }
    }
    store.release(sub_group, true);
  }
  load_model_states(contents, where);
  for (const NamedTensor& buffer : model.buffers()) {
    lookup.copy(buffer.name, kBuffer, buffer.tensor);
  }
  for (std::size_t k = 0; k < store.frozen().size(); ++k) {
    store.set_frozen(
        k, [&](const at::Tensor& to, std::int64_t offset) { lookup.copy(store.frozen()[k].name, kParam, to, offset); });
  }
  for (const NamedTensor& parameter : model.parameters()) {
    if (at::isFloatingType(parameter.tensor.scalar_type())) continue;
    lookup.copy(parameter.name, kParam, parameter.tensor.detach());
  }

  progress = {count("global_steps"), count("updates"), count("skipped_steps"), count("global_samples")};
  micro_steps_seen = progress.global_steps * config.batch.gradient_accumulation_steps;
  scaler.load(state.at("loss_scaler"));
  if (const Json* list = state.find("groups"); list && list->size() == groups.size()) {
    for (std::size_t i = 0; i < groups.size(); ++i)
      groups.set_base_lr(i, list->as_array()[i].at("base_lr").as_number());
  }
  if (optimizer && CAPSTAN_HAS(optimizer->vtable<capstan_optimizer>(), load)) {
    const std::string& text = saved_optimizer->at("state").as_string();
    call_plugin(optimizer_where + ", load", [&](capstan_error* error) {
      return optimizer->vtable<capstan_optimizer>()->load(optimizer->self(), as_str(text), error);
    });
  }
  if (const Json* scheduler = state.find("scheduler"); scheduler && config.scheduler) {
    if (scheduler->at("type").as_string() == config.scheduler->type) {
      schedule.load(scheduler->at("state").as_string());
    } else {
      log::warning(where + ": was saved with scheduler " + scheduler->at("type").as_string() + ", this run uses " +
                   config.scheduler->type + ", which goes on at update " + std::to_string(progress.updates) + ".");
    }
  }
  if (const Json* saved_observers = state.find("observers")) observers.load(*saved_observers);
  load_generator(state, contents);
  if (const Json* then = state.find("world_size"); then && *then != Json(config.batch.world_size)) {
    log::info(where + ": was saved by " + then->dump() + " processes and goes on with " +
              std::to_string(config.batch.world_size) + ".");
  }
  schedule.apply(progress.updates);
  store.refresh_all(transform_weight());
  emit(CAPSTAN_EVENT_LOADED);
  resumed_at = progress.global_samples;
  build_monitors();
  const Json* client_state = state.find("client_state");
  return client_state ? *client_state : Json::object();
}

void Engine::load_weights(const std::string& file) {
  at::NoGradGuard no_grad;
  State& state = *state_;
  std::map<std::string, at::Tensor> values;
  std::error_code error;
  auto entries = std::filesystem::is_directory(file, error)
                     ? read_hf_folder(file, hf_format(state.model.describe(), state.model.description()))
                     : read_safetensors(file);
  for (SafetensorsEntry& entry : entries) values.emplace(std::move(entry.name), std::move(entry.values));

  std::string missing, misshapen, unexpected;
  std::set<std::string> known;
  for (const NamedTensor& parameter : state.model.parameters()) {
    known.insert(parameter.name);
    const auto found = values.find(parameter.name);
    if (found == values.end()) {
      missing += " '" + parameter.name + "'";
    } else if (found->second.sizes() != parameter.tensor.sizes()) {
      misshapen += " '" + parameter.name + "' (" + shape_text(found->second.sizes()) + " in the file, " +
                   shape_text(parameter.tensor.sizes()) + " in the model)";
    }
  }
  for (const NamedTensor& buffer : state.model.buffers()) known.insert(buffer.name);
  for (const auto& [name, value] : values) {
    if (!known.contains(name)) unexpected += " '" + name + "'";
  }
  if (!missing.empty() || !misshapen.empty()) {
    throw RuntimeFault(file + ": does not fit model '" + state.model.description() + "'." +
                       (missing.empty() ? "" : " Missing:" + missing + ".") +
                       (misshapen.empty() ? "" : " Of another shape:" + misshapen + ".") +
                       (unexpected.empty() ? "" : " In the file only:" + unexpected + "."));
  }
  if (!unexpected.empty()) log::warning(file + ": not in the model, so not used:" + unexpected + ".");

  for (ParameterEntry& entry : state.store.entries()) {
    const at::Tensor given = values.at(entry.name).reshape({-1});
    entry.master.view({-1}).copy_(given.narrow(0, entry.offset, entry.master.numel()));
    known.erase(entry.name);
  }
  for (std::size_t k = 0; k < state.store.frozen().size(); ++k) {
    const std::string& name = state.store.frozen()[k].name;
    const at::Tensor given = values.at(name).reshape({-1});
    state.store.set_frozen(
        k, [&](at::Tensor to, std::int64_t offset) { to.copy_(given.narrow(0, offset, to.numel()).view(to.sizes())); });
    known.erase(name);
  }
  for (const auto* list : {&state.model.parameters(), &state.model.buffers()}) {
    for (const NamedTensor& named : *list) {
      if (!known.contains(named.name) || !values.contains(named.name)) continue;
      at::Tensor tensor = named.tensor.detach();
      tensor.copy_(values.at(named.name).view_as(tensor));
    }
  }
  state.store.refresh_all(state.transform_weight());
}

}  // namespace capstan
