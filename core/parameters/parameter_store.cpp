#include "core/parameters/parameter_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/persistence.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/parameters/run_needs.hpp"

namespace capstan {
namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

bool is_trained(const NamedTensor& named) { return named.trained() && at::isFloatingType(named.tensor.scalar_type()); }

}  // namespace

ParameterStore::ParameterStore(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups,
                               const Accelerator& accelerator, Options options)
    : accelerator_(accelerator), options_(std::move(options)) {
  at::NoGradGuard no_grad;
  if (options_.sharding) build_sharding(parameters);
  home_ = make_home(sharding_.get(), options_.residency);
  plan_entries(parameters);
  plan_sub_groups(parameters, groups);
  for (std::size_t i = 0; i < parameters.size(); ++i) build_entry(parameters[i], groups.group_of(i));
  attach(parameters);
  build_gradients();
  build_pieces(groups);
  build_wide();
  build_model_state();
  build_slots();
  build_compressed();
}

/// What can be said of parameters before anything is made of them.
void ParameterStore::plan_entries(const std::vector<NamedTensor>& parameters) {
  Persistence persistence(options_.persistent_max_elements, options_.persistent_total_elements);
  for (const NamedTensor& named : parameters) {
    if (!is_trained(named)) continue;
    EntryPlan plan;
    plan.dtype = options_.stays_fp32 && options_.stays_fp32(named) ? at::kFloat : options_.compute_dtype;
    plan.whole = named.tensor.numel();
    plan.part = home_->updated(plans_.size(), plan.whole);
    plan.compressed = options_.compressed && options_.compressed(named);
    if (options_.trained_state_of) plan.trained_state_of = options_.trained_state_of(named);
    // All masters of compressed parameters, and their trained states, are read together.
    const bool read_together = plan.compressed || !plan.trained_state_of.empty();
    if (options_.low_precision_masters && !read_together) plan.master = plan.dtype;
    plan.separate = plan.dtype != plan.master || plan.compressed || options_.updates_on_host ||
                    (!partitioned() && !named.tensor.is_contiguous());
    plan.master_stored = plan.separate && !read_together && options_.offload.states != nullptr;
    plan.stays = persistence.stays(named.tensor.numel());
    plans_.push_back(plan);
  }
  for (const NamedTensor& named : parameters) {
    const bool frozen = !named.trained() && at::isFloatingType(named.tensor.scalar_type());
    if (frozen) frozen_stays_.push_back(persistence.stays(named.tensor.numel()));
  }
  frozen_stored_.resize(frozen_stays_.size());
  if (options_.offload.parameters) plan_stored_parameters(parameters);
}

/// Parameters stay in memory in the model's order, as many as max_in_cpu allows.
void ParameterStore::plan_stored_parameters(const std::vector<NamedTensor>& parameters) {
  const bool alone = sharding_->communicator().size() == 1;
  // Codes of frozen parameters stay, which are a half or a quarter of the values; one process has no codes.
  const bool coded = options_.frozen_as_int8 && !alone;
  std::vector<std::pair<bool, std::size_t>> may_leave;  // trained, and the index among these or the frozen ones
  std::vector<std::int64_t> numels;
  std::size_t trained = 0, frozen = 0;
  for (const NamedTensor& named : parameters) {
    if (!at::isFloatingType(named.tensor.scalar_type())) continue;
    const bool is_one = named.trained();
    const std::size_t i = is_one ? trained++ : frozen++;
    const bool read_together = is_one && (plans_[i].compressed || !plans_[i].trained_state_of.empty());
    if (is_one ? plans_[i].stays || read_together : frozen_stays_[i] || coded) continue;
    may_leave.emplace_back(is_one, i);
    numels.push_back(named.tensor.numel());
  }
  const std::vector<bool> stored =
      stored_parameters(numels, sharding_->communicator().size(), options_.offload.max_in_memory);
  for (std::size_t k = 0; k < stored.size(); ++k) {
    const auto [is_trained, i] = may_leave[k];
    // With one process the part of a parameter is all of it, which in memory has no other place to come from.
    if (is_trained) {
      plans_[i].parameter_stored = stored[k];
      plans_[i].stays = alone && !stored[k];
    } else {
      frozen_stored_[i] = stored[k];
      frozen_stays_[i] = alone && !stored[k];
    }
  }
}

void ParameterStore::build_entry(const NamedTensor& named, std::uint32_t group) {
  at::Tensor parameter = named.tensor;
  if (!at::isFloatingType(parameter.scalar_type())) {
    if (!named.trained()) return;
    throw RuntimeFault("parameter '" + named.name + "': its dtype is " + c10::toString(parameter.scalar_type()) +
                       "; only real floating-point parameters can be trained. Freeze it (requires_grad_(false)).");
  }
  // The device takes a part of it later, once it has a place for parts.
  const bool comes = parts_only() && parameter.is_cpu() && !accelerator_.is_host();
  if ((parameter.device() != accelerator_.device() && !comes) || parameter.layout() != at::kStrided) {
    throw RuntimeFault("parameter '" + named.name + "': is " + c10::str(parameter.layout()) + " on " +
                       parameter.device().str() + "; this engine trains dense parameters on " +
                       accelerator_.device().str() + ". Build the model there.");
  }
  // Alias first: after the cast below the alias keeps the values at full precision, without a copy.
  const at::Tensor original = parameter.detach();
  const bool frozen = !named.trained();
  const bool fp32 =
      frozen ? options_.stays_fp32 && options_.stays_fp32(named) : plans_[entries_.size()].dtype == at::kFloat;
  const at::ScalarType dtype = fp32 ? at::kFloat : options_.compute_dtype;
  const bool deferred = comes || (options_.deferred && options_.deferred->has(original));
  if (parameter.scalar_type() != dtype || comes) {
    parameter.set_data(deferred ? DeferredValues::without_memory(original, dtype, accelerator_.device())
                                : original.to(dtype));
  }
  if (deferred) {
    deferred_.push_back({original, parameter.detach(), frozen ? frozen_.size() : entries_.size(), frozen});
  }
  if (frozen) {
    frozen_.push_back({named.name, parameter.detach()});
    return;
  }

  const EntryPlan& plan = plans_[entries_.size()];
  ParameterEntry entry;
  entry.name = named.name;
  entry.parameter = parameter;
  entry.compute = parameter.detach();
  entry.shape = parameter.sizes().vec();
  entry.group = group;
  entry.role = named.role;
  entry.storage = storage_of(parameter);
  entry.compressed = plan.compressed;
  entry.separate = plan.compressed || parameter.scalar_type() != plan.master || !parameter.is_contiguous() ||
                   options_.updates_on_host;
  entry.master = entry.compute;
  entries_.push_back(std::move(entry));
  if (partitioned()) return cut_entry(entries_.size() - 1, original, deferred);
  ParameterEntry& built = entries_.back();
  if (plan.master_stored) {
    built.master = at::empty(built.shape, at::TensorOptions(plan.master).device(at::kMeta));
    return put_master(entries_.size() - 1, options_.round_masters ? built.compute : original);
  }
  const at::Device place = options_.updates_on_host ? at::Device(at::kCPU) : original.device();
  if (built.separate) built.master = original.to(place, plan.master).contiguous();
  if (built.separate && storage_of(built.master) == built.storage) built.master = built.master.clone();
}

bool ParameterStore::has_state(const StateSpec& spec, const ParameterEntry& entry,
                               const ParameterGroups& groups) const {
  return capstan::has_state(spec, groups[entry.group], entry.name, entry.shape, entry.role);
}

void ParameterStore::start_states() {
  const auto& specs = options_.states;
  if (std::none_of(specs.begin(), specs.end(), [](const StateSpec& spec) { return spec.init_param; })) return;
  for (const SubGroup& sub_group : sub_groups_) {
    acquire(sub_group);
    for (Piece& piece : pieces(sub_group)) {
      for_each_state(piece, [&](const StateSpec& spec, at::Tensor& values) {
        if (spec.init_param) values.copy_(piece.master.view({-1}));
      });
    }
    release(sub_group, true);
  }
}

at::Tensor ParameterStore::allocate_state(at::IntArrayRef shape, at::ScalarType dtype) const {
  return options_.updates_on_host ? host_empty(shape, dtype) : accelerator_.allocate(shape, dtype);
}

void ParameterStore::build_model_state() {
  std::vector<std::int64_t> numels;
  for (const ParameterEntry& entry : entries_) numels.push_back(entry.parameter.numel());
  const int ranks = sharding_ ? sharding_->communicator().size() : 1;
  for (const StateSpec& spec : options_.states) {
    if (spec.extent != StateSpec::Extent::kModel) continue;
    model_state_.push_back(
        allocate_state({model_state_numel(spec, numels, ranks)}, options_.state_dtype(spec)).fill_(spec.init));
  }
  for (const at::Tensor& state : model_state_) model_state_handles_.push_back(handle_of(state));
}

void ParameterStore::build_compressed() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const ParameterEntry& entry = entries_[i];
    if (!plans_[i].trained_state_of.empty()) {
      compressed_.states.push_back({i,
                                    entry.name,
                                    plans_[i].whole,
                                    plans_[i].part,
                                    home_->updated_by_ranks(i),
                                    entry.master.view({-1}),
                                    {},
                                    false});
    }
    if (!entry.compressed) continue;
    CompressedPart& part = compressed_.parameters.emplace_back();
    part.entry = i;
    part.name = entry.name;
    part.shape = entry.shape;
    part.range = plans_[i].part;
    part.master = entry.master.view({-1});
    part.compute = entry.compute_part;
    if (!partitioned()) part.compute = entry.compute.contiguous().view({-1});
    if (options_.updates_on_host) part.compute = host_empty({part.range.numel}, entry.compute.scalar_type());
    part.wants_scales = home_->sends_codes();
    part.of_ranks = home_->updated_by_ranks(i);
  }
}

void ParameterStore::compress(const std::string& step) {
  if (compressed_.parameters.empty()) return;
  const at::NoGradGuard no_grad;
  settle();
  options_.compress(step, compressed_, initial_);
  for (CompressedPart& part : compressed_.parameters) {
    if (part.wants_scales) home_->set_scales(part.entry, std::exchange(part.scales, std::nullopt));
    ParameterEntry& entry = entries_[part.entry];
    if (options_.updates_on_host) {
      const at::Tensor& to = partitioned() ? entry.compute_part : entry.compute;
      send_to_device(to, part.compute.view(to.sizes()));
    } else if (!partitioned() && !entry.compute.is_contiguous()) {
      entry.compute.copy_(part.compute.view(entry.shape));
    }
  }
}

void ParameterStore::build_slots() {
  compute_written_.resize(pieces_.size());
  state_handles_.resize(pieces_.size());
  piece_gradients_.resize(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    Piece& piece = pieces_[p];
    ParameterEntry& entry = entries_[piece.entry];
    for (const at::Tensor& state : piece.state) {
      state_handles_[p].push_back(state.defined() ? handle_of(state) : nullptr);
    }
    capstan_slot slot{};
    slot.struct_size = sizeof slot;
    slot.group = entry.group;
    slot.name = as_str(entry.name);
    slot.param = handle_of(piece.master);
    slot.state = state_handles_[p].data();
    slot.offset = static_cast<std::uint64_t>(entry.offset + piece.offset);
    slot.numel = static_cast<std::uint64_t>(piece.numel);
    slot.full_numel = static_cast<std::uint64_t>(entry.parameter.numel());
    slot.full_shape = entry.shape.data();
    slot.full_dims = static_cast<std::uint32_t>(entry.shape.size());
    slot.compute_written = &compute_written_[p];
    slot.state_count = state_handles_[p].size();
    slot.role = entry.role;
    const at::Tensor& written = piece.kept_master.defined() ? piece.kept_master : piece.compute;
    const bool at_random = piece.kept_master.defined() && options_.rounding_seed;
    const bool may_write = written.defined() && !options_.round_masters && !entry.compressed && !at_random;
    slot.compute = may_write ? handle_of(written) : nullptr;
    slots_.push_back(slot);
  }
}

void ParameterStore::begin_backward(const std::string& step, bool last, bool local,
                                    const std::vector<std::size_t>& left_out) {
  gradients_->begin_backward(step, last, local, left_out);
  if (last) staging_->prefetch();
}

void ParameterStore::end_backward() {
  home_->end_backward();
  gradients_->end_backward();
  if (early_gradients_) early_gradients_->close();
}

void ParameterStore::give_zeros(const std::vector<std::size_t>& entries) {
  for (const std::size_t i : entries) gradients_->give_zeros(i);
}

const std::vector<const at::Tensor*>& ParameterStore::collect_gradients() {
  for (const ParameterEntry& entry : entries_) {
    if (storage_of(entry.parameter) == entry.storage) continue;
    throw RuntimeFault("parameter '" + entry.name +
                       "': its storage was exchanged after the engine was built (module->to(), set_data?), so "
                       "updates would not reach the model. Move the model first, then build the engine.");
  }
  const std::vector<const at::Tensor*>& collected = gradients_->collect();
  staging_->set_gradients(true);
  return collected;
}

/// The gradient of a piece, whose entry has one.
const at::Tensor& ParameterStore::gradient_of(std::size_t piece_index) {
  const Piece& piece = pieces_[piece_index];
  if (piece.gradient.defined()) return piece.gradient;
  if (options_.updates_on_host) return piece_gradients_[piece_index];
  const at::Tensor& whole = *gradients_->collected(piece.entry);
  // In a local step a gradient is the whole parameter's, of which this rank may have a part.
  if (first_piece_[piece.entry] + 1 == first_piece_[piece.entry + 1]) return whole;
  return piece_gradients_[piece_index] = whole.view({-1}).narrow(0, piece.offset, piece.numel);
}

/// Copies the gradients of a sub-group to host memory, unless they are there.
void ParameterStore::bring_gradients(const SubGroup& sub_group) {
  std::vector<std::size_t> brought;
  std::vector<at::Tensor> there;
  for (std::size_t p = sub_group.begin; p < sub_group.end; ++p) {
    const Piece& piece = pieces_[p];
    const at::Tensor* whole = gradients_->has(piece.entry) ? gradients_->collected(piece.entry) : nullptr;
    if (whole == nullptr || piece_gradients_[p].defined()) continue;
    if (const at::Tensor early = early_gradients_->take(piece.entry, *whole); early.defined()) {
      piece_gradients_[p] = early.narrow(0, piece.offset, piece.numel);
      continue;
    }
    brought.push_back(p);
    there.push_back(whole->view({-1}).narrow(0, piece.offset, piece.numel));
  }
  std::vector<at::Tensor> here = accelerator_.to_host(there);
  for (std::size_t k = 0; k < brought.size(); ++k) piece_gradients_[brought[k]] = std::move(here[k]);
}

const std::vector<const capstan_slot*>& ParameterStore::slots(const SubGroup& sub_group) {
  if (options_.updates_on_host) bring_gradients(sub_group);
  slot_list_.clear();
  const SparseRows* taken = gradients_->rows();
  for (std::size_t p = sub_group.begin; p < sub_group.end; ++p) {
    const std::size_t i = pieces_[p].entry;
    if (!gradients_->has(i)) continue;
    slots_[p].grad = handle_of(gradient_of(p));
    const std::vector<std::int64_t>* rows = taken ? taken->rows(i) : nullptr;
    slots_[p].grad_rows = rows ? rows->data() : nullptr;
    slots_[p].grad_row_count = rows ? rows->size() : 0;
    compute_written_[p] = 0;
    slot_list_.push_back(&slots_[p]);
  }
  return slot_list_;
}

const std::vector<const capstan_slot*>& ParameterStore::slots_without_gradients() {
  slot_list_.clear();
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    slots_[p].grad = nullptr;
    compute_written_[p] = 0;
    slot_list_.push_back(&slots_[p]);
  }
  return slot_list_;
}

void ParameterStore::drop_gradients(bool applied) {
  gradients_->drop(applied);
  for (at::Tensor& gradient : piece_gradients_) gradient.reset();
  if (early_gradients_) early_gradients_->drop();
  staging_->set_gradients(false);
}

void ParameterStore::refresh(const SubGroup& sub_group, std::int64_t update) {
  for (std::size_t p = sub_group.begin; p < sub_group.end; ++p) {
    Piece& piece = pieces_[p];
    if (!gradients_->has(piece.entry)) continue;
    keep(p, update);
    if (compute_written_[p] == 0 || piece.kept_master.defined()) {
      refresh_piece(piece);
    } else if (piece.on_device.defined()) {
      send_to_device(piece.on_device, piece.compute);
    }
  }
}

/// Brings the compute copy of a piece, whose tensors show their values, up to date with the master.
void ParameterStore::refresh_piece(Piece& piece) {
  ParameterEntry& entry = entries_[piece.entry];
  if (entry.compressed) return;                   // compress() does
  if (plans_[piece.entry].copy_stored()) return;  // release() does
  if (piece.kept_master.defined()) return send_kept(piece);
  at::Tensor compute = options_.updates_on_host ? piece.on_device : piece.compute;
  if (!compute.defined() && !partitioned() && entry.separate) compute = entry.compute;
  if (!compute.defined()) return;
  const at::Tensor master = piece.master.view(compute.sizes());
  if (options_.updates_on_host) {
    send_to_device(compute, master);
  } else {
    accelerator_.copy(compute, master);
  }
  if (!partitioned() && options_.round_masters) accelerator_.copy(piece.master, compute.view(piece.master.sizes()));
}

/// The calling thread need not wait: the device's later work does.
void ParameterStore::send_to_device(const at::Tensor& to, const at::Tensor& from) const {
  at::Tensor(to).copy_(to.is_cpu() ? from : accelerator_.upload(from));
}

void ParameterStore::refresh_copies(const SubGroup& sub_group) {
  for (std::size_t p = sub_group.begin; p < sub_group.end; ++p) {
    keep(p, std::nullopt);
    if (entries_[pieces_[p].entry].master.is_meta()) refresh_piece(pieces_[p]);
  }
}

void ParameterStore::refresh_all() {
  for (const SubGroup& sub_group : sub_groups_) {
    for (Piece& piece : pieces(sub_group)) {
      // On a store, copies are brought up to date wherever masters change.
      if (!entries_[piece.entry].master.is_meta()) refresh_piece(piece);
    }
  }
  compress("all parameters");
  share("all parameters");
  settle();
}

}  // namespace capstan
