#include "core/parameters/parameter_store.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/parameters/run_needs.hpp"

namespace capstan {
namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Extents of a state; those of the whole model have no place in an entry.
bool per_entry(const StateSpec& spec) { return spec.extent != StateSpec::Extent::kModel; }

}  // namespace

ParameterStore::ParameterStore(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups,
                               const Accelerator& accelerator, Options options)
    : accelerator_(accelerator), options_(std::move(options)) {
  at::NoGradGuard no_grad;
  if (options_.sharding) build_sharding(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) build_entry(parameters[i], groups.group_of(i));
  if (sharding_) attach_sharding(parameters);
  if (options_.sparse_rows && !sharding_) {
    std::vector<at::Tensor> tensors;
    for (const ParameterEntry& entry : entries_) tensors.push_back(entry.parameter);
    rows_.emplace(tensors);
  }
  build_sub_groups();
  build_states(groups);
  build_slots();
}

void ParameterStore::build_entry(const NamedTensor& named, std::uint32_t group) {
  at::Tensor parameter = named.tensor;
  if (!at::isFloatingType(parameter.scalar_type())) {
    if (!parameter.requires_grad()) return;
    throw RuntimeFault("parameter '" + named.name + "': its dtype is " + c10::toString(parameter.scalar_type()) +
                       "; only real floating-point parameters can be trained. Freeze it (requires_grad_(false)).");
  }
  if (parameter.device() != accelerator_.device() || parameter.layout() != at::kStrided) {
    throw RuntimeFault("parameter '" + named.name + "': is " + c10::str(parameter.layout()) + " on " +
                       parameter.device().str() + "; this engine trains dense parameters on " +
                       accelerator_.device().str() + ". Build the model there.");
  }
  // Alias first: after the cast below the alias keeps the values at full precision, without a copy.
  const at::Tensor original = parameter.detach();
  const bool fp32 = options_.stays_fp32 && options_.stays_fp32(named);
  const at::ScalarType dtype = fp32 ? at::kFloat : options_.compute_dtype;
  const bool deferred = options_.deferred && options_.deferred->has(original);
  if (parameter.scalar_type() != dtype) {
    parameter.set_data(deferred ? DeferredValues::without_memory(original, dtype) : original.to(dtype));
  }
  const bool frozen = !parameter.requires_grad();
  if (deferred) {
    deferred_.push_back({original, parameter.detach(), frozen ? frozen_.size() : entries_.size(), frozen});
  }
  if (frozen) {
    frozen_.push_back({named.name, parameter.detach()});
    return;
  }

  ParameterEntry entry;
  entry.name = named.name;
  entry.parameter = parameter;
  entry.compute = parameter.detach();
  entry.shape = parameter.sizes().vec();
  entry.group = group;
  entry.role = named.role;
  entry.storage = storage_of(parameter);
  entry.transform = options_.select_transform ? options_.select_transform(named) : -1;
  entry.separate = entry.transform >= 0 || parameter.scalar_type() != at::kFloat || !parameter.is_contiguous();
  entry.master = entry.compute;
  entries_.push_back(std::move(entry));
  if (partitioned()) return cut_entry(entries_.size() - 1, original, deferred);
  ParameterEntry& built = entries_.back();
  if (built.separate) built.master = original.to(at::kFloat).contiguous();
  if (built.separate && storage_of(built.master) == built.storage) built.master = built.master.clone();
}

void ParameterStore::build_sub_groups() {
  std::int64_t elements = 0;
  SubGroup current;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    elements += entries_[i].master.numel();
    current.end = i + 1;
    if (elements >= options_.sub_group_size || i + 1 == entries_.size()) {
      sub_groups_.push_back(current);
      current = {i + 1, i + 1, sub_groups_.size()};
      elements = 0;
    }
  }
}

bool ParameterStore::has_state(const StateSpec& spec, const ParameterEntry& entry,
                               const ParameterGroups& groups) const {
  return capstan::has_state(spec, groups[entry.group], entry.name, entry.shape, entry.role);
}

std::uint64_t ParameterStore::state_bytes(const SubGroup& sub_group, const ParameterGroups& groups) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
    for (const StateSpec& spec : options_.states) {
      if (!per_entry(spec) || !has_state(spec, entries_[i], groups)) continue;
      bytes += SubGroupTier::aligned(
          static_cast<std::uint64_t>(spec.values_for(entries_[i].master.numel(), entries_[i].shape)) *
          c10::elementSize(options_.state_dtype(spec)));
    }
  }
  return bytes;
}

void ParameterStore::build_states(const ParameterGroups& groups) {
  if (!options_.tier) options_.tier = std::make_unique<ResidentTier>(accelerator_);
  std::vector<std::uint64_t> bytes;
  for (const SubGroup& sub_group : sub_groups_) bytes.push_back(state_bytes(sub_group, groups));
  options_.tier->reserve(bytes);
  for (const SubGroup& sub_group : sub_groups_) {
    options_.tier->open(sub_group.index);
    for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) build_states(entries_[i], groups);
    options_.tier->release(sub_group.index, true);
  }
  build_model_state();
}

void ParameterStore::build_states(ParameterEntry& entry, const ParameterGroups& groups) {
  for (const StateSpec& spec : options_.states) {
    if (!per_entry(spec)) continue;
    at::Tensor& state = entry.state.emplace_back();
    if (!has_state(spec, entry, groups)) continue;
    // Counters are read where the update is prepared: on a device each would be a wait.
    const bool counter = spec.like == StateSpec::Like::kScalar;
    state = options_.tier->allocate(spec.values_for(entry.master.numel(), entry.shape), options_.state_dtype(spec),
                                    counter);
    state.fill_(spec.init);
  }
}

void ParameterStore::start_states() {
  const auto& specs = options_.states;
  if (std::none_of(specs.begin(), specs.end(), [](const StateSpec& spec) { return spec.init_param; })) return;
  for (const SubGroup& sub_group : sub_groups_) {
    acquire(sub_group);
    for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
      for_each_state(entries_[i], [&](const StateSpec& spec, at::Tensor& values) {
        if (spec.init_param) values.copy_(entries_[i].master.view({-1}));
      });
    }
    release(sub_group, true);
  }
}

void ParameterStore::build_model_state() {
  std::vector<std::int64_t> numels;
  for (const ParameterEntry& entry : entries_) numels.push_back(entry.parameter.numel());
  const int ranks = sharding_ ? sharding_->communicator().size() : 1;
  for (const StateSpec& spec : options_.states) {
    if (per_entry(spec)) continue;
    model_state_.push_back(
        accelerator_.allocate({model_state_numel(spec, numels, ranks)}, options_.state_dtype(spec)).fill_(spec.init));
  }
  for (const at::Tensor& state : model_state_) model_state_handles_.push_back(handle_of(state));
}

void ParameterStore::build_slots() {
  compute_written_.resize(entries_.size());
  state_handles_.resize(entries_.size());
  gradients_.resize(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    ParameterEntry& entry = entries_[i];
    for (const at::Tensor& state : entry.state) {
      state_handles_[i].push_back(state.defined() ? handle_of(state) : nullptr);
    }
    capstan_slot slot{};
    slot.struct_size = sizeof slot;
    slot.group = entry.group;
    slot.name = as_str(entry.name);
    slot.param = handle_of(entry.master);
    slot.state = state_handles_[i].data();
    slot.offset = static_cast<std::uint64_t>(entry.offset);
    slot.numel = static_cast<std::uint64_t>(entry.master.numel());
    slot.full_numel = static_cast<std::uint64_t>(entry.parameter.numel());
    slot.full_shape = entry.shape.data();
    slot.full_dims = static_cast<std::uint32_t>(entry.shape.size());
    slot.compute_written = &compute_written_[i];
    slot.state_count = state_handles_[i].size();
    slot.role = entry.role;
    if (!partitioned() && !options_.round_masters && entry.separate && entry.transform < 0 &&
        entry.compute.is_contiguous() && entry.compute.scalar_type() != at::kFloat) {
      entry.compute_part = entry.compute;
    }
    slot.compute = entry.compute_part.defined() ? handle_of(entry.compute_part) : nullptr;
    slots_.push_back(slot);
  }
}

void ParameterStore::begin_backward(const std::string& step, bool last, bool local) {
  if (sharding_) sharding_->gradients().begin(step, last, local);
}

void ParameterStore::end_backward() {
  if (residency_) residency_->end_pass();
  if (sharding_) return sharding_->gradients().end();
  if (options_.accumulation_dtype == options_.compute_dtype) return;  // the parameters' own gradients add up
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    ParameterEntry& entry = entries_[i];
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (rows_) rows_->note(i, gradient);
    if (gradient.layout() != at::kStrided && options_.sparse_gradients) gradient = gradient.to_dense();
    if (entry.accumulated.defined()) {
      entry.accumulated.add_(gradient);
    } else {
      entry.accumulated = gradient.to(options_.accumulation_dtype);
    }
    gradient.reset();
  }
}

const std::vector<const at::Tensor*>& ParameterStore::collect_gradients() {
  present_.clear();
  contiguous_copies_.clear();
  contiguous_copies_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    ParameterEntry& entry = entries_[i];
    if (storage_of(entry.parameter) != entry.storage) {
      throw RuntimeFault("parameter '" + entry.name +
                         "': its storage was exchanged after the engine was built (module->to(), set_data?), so "
                         "updates would not reach the model. Move the model first, then build the engine.");
    }
    gradients_[i] = nullptr;
    if (sharding_) {
      const bool wanted = !present_on_any_.empty() && present_on_any_[i] && entry.master.numel() > 0;
      if (!wanted && !options_.every_slot) continue;
      entry.reduced = sharding_->gradients().gradient(i);
    }
    at::Tensor& gradient = entry.gradient();
    if (!gradient.defined()) continue;
    if (rows_ && !entry.accumulated.defined()) rows_->note(i, gradient);
    if (gradient.layout() != at::kStrided) {
      if (!options_.sparse_gradients) {
        throw RuntimeFault("parameter '" + entry.name +
                           "': has a sparse gradient, and optimizers update dense ones. Set sparse_gradients, or build "
                           "the embedding with sparse = false.");
      }
      gradient = gradient.to_dense();
    }
    if (gradient.is_contiguous()) {
      gradients_[i] = &gradient;
    } else {
      gradients_[i] = &contiguous_copies_.emplace_back(gradient.contiguous());
    }
    present_.push_back(gradients_[i]);
  }
  return present_;
}

const std::vector<const capstan_slot*>& ParameterStore::slots(const SubGroup& sub_group) {
  slot_list_.clear();
  for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
    if (gradients_[i] == nullptr) continue;
    slots_[i].grad = handle_of(*gradients_[i]);
    const SparseRows* taken = sparse_rows();
    const std::vector<std::int64_t>* rows = taken ? taken->rows(i) : nullptr;
    slots_[i].grad_rows = rows ? rows->data() : nullptr;
    slots_[i].grad_row_count = rows ? rows->size() : 0;
    compute_written_[i] = 0;
    slot_list_.push_back(&slots_[i]);
  }
  return slot_list_;
}

const std::vector<const capstan_slot*>& ParameterStore::slots_without_gradients() {
  slot_list_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    slots_[i].grad = nullptr;
    compute_written_[i] = 0;
    slot_list_.push_back(&slots_[i]);
  }
  return slot_list_;
}

const SparseRows* ParameterStore::sparse_rows() const {
  if (sharding_) return sharding_->gradients().sparse_rows();
  return rows_ ? &*rows_ : nullptr;
}

void ParameterStore::drop_gradients(bool applied) {
  if (rows_) rows_->drop();
  for (ParameterEntry& entry : entries_) {
    entry.parameter.mutable_grad().reset();
    entry.accumulated.reset();
    entry.reduced.reset();
  }
  present_on_any_.clear();
  if (!sharding_) return;
  sharding_->gradients().drop();
  // What is lost of a number that is not finite is not finite, and would spoil the next gradients.
  if (!applied) sharding_->gradients().forget_errors();
}

void ParameterStore::refresh(const SubGroup& sub_group, const TransformWeight& transform) {
  for (std::size_t i = sub_group.begin; i < sub_group.end; ++i) {
    if (gradients_[i] == nullptr || compute_written_[i] != 0) continue;
    if (partitioned()) {
      ParameterEntry& entry = entries_[i];
      if (entry.compute_part.defined()) accelerator_.copy(entry.compute_part, entry.master);
    } else if (entries_[i].separate) {
      refresh_entry(i, transform);
    }
  }
}

void ParameterStore::refresh_all(const TransformWeight& transform) {
  if (partitioned()) {
    for (ParameterEntry& entry : entries_) {
      if (entry.compute_part.defined()) accelerator_.copy(entry.compute_part, entry.master);
    }
    share("all parameters", transform);
    return settle();
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].separate) refresh_entry(i, transform);
  }
}

void ParameterStore::refresh_entry(std::size_t index, const TransformWeight& transform) {
  ParameterEntry& entry = entries_[index];
  if (entry.transform >= 0) {
    transform(entry);
  } else {
    accelerator_.copy(entry.compute, entry.master);
    if (options_.round_masters) accelerator_.copy(entry.master, entry.compute);
  }
}

}  // namespace capstan
