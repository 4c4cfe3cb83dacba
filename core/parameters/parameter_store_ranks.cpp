// What a parameter store does when several processes train, or one that holds parts alone.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>
#include <malloc.h>

#include <algorithm>
#include <exception>
#include <functional>

#include "core/host_tensor.hpp"
#include "core/memory/remote_storage.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {
namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

void ParameterStore::build_sharding(const std::vector<NamedTensor>& parameters) {
  std::vector<std::int64_t> numels, frozen;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.trained()) {
      numels.push_back(parameter.tensor.numel());
    } else if (at::isFloatingType(parameter.tensor.scalar_type())) {
      frozen.push_back(parameter.tensor.numel());
    }
  }
  add_given(parameters);
  sharding_ = std::make_unique<Sharding>(*options_.sharding, numels, frozen);
}

/// Trained states of compressions get their gradients from those of the parameters that they belong to.
void ParameterStore::add_given(const std::vector<NamedTensor>& parameters) {
  if (!options_.trained_state_of) return;
  std::vector<const NamedTensor*> trained;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.trained()) trained.push_back(&parameter);
  }
  for (std::size_t i = 0; i < trained.size(); ++i) {
    const std::string of = options_.trained_state_of(*trained[i]);
    if (of.empty()) continue;
    const auto parent =
        std::find_if(trained.begin(), trained.end(), [&](const NamedTensor* one) { return one->name == of; });
    const bool like = parent != trained.end() && (*parent)->tensor.sizes() == trained[i]->tensor.sizes();
    options_.sharding->given.push_back(
        {i, like ? std::optional(static_cast<std::size_t>(parent - trained.begin())) : std::nullopt});
  }
}

void ParameterStore::cut_entry(std::size_t index, const at::Tensor& full_values, bool deferred) {
  ParameterEntry& entry = entries_[index];
  const Range part = sharding_->updated(index);
  entry.offset = part.offset;
  // Of the master's type, the part of the memory that all parameters share is the master; see attach().
  const EntryPlan& plan = plans_[index];
  if (plan.master_stored || (!plan.separate && plan.parameter_stored)) {
    entry.master = at::empty({part.numel}, at::TensorOptions(plan.master).device(at::kMeta));
    if (plan.master_stored && !deferred) put_master(index, full_values);
    return;
  }
  if (!plan.separate) return;
  const at::Device device = options_.updates_on_host ? at::Device(at::kCPU) : accelerator_.device();
  entry.master = at::empty({part.numel}, at::TensorOptions(plan.master).device(device));
  if (!deferred) entry.master.copy_(full_values.reshape({-1}).narrow(0, part.offset, part.numel));
}

void ParameterStore::attach(const std::vector<NamedTensor>& parameters) {
  const std::vector<bool> alone = alone_in_storage(parameters);
  const std::vector<bool> stays = parts_only() ? staying() : std::vector<bool>(entries_.size() + frozen_.size(), true);
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  std::vector<bool> movable, movable_frozen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained()) {
      if (!at::isFloatingType(parameters[i].tensor.scalar_type())) continue;
      movable_frozen.push_back(alone[i] && stays[entries_.size() + movable_frozen.size()]);
      continue;
    }
    const ParameterEntry& entry = entries_[tensors.size()];
    movable.push_back(alone[i] && stays[tensors.size()]);
    tensors.push_back(entry.parameter);
    names.push_back(entry.name);
  }
  if (sharding_) sharding_->attach(tensors, names, movable, stored_values());
  for (std::size_t i = 0; partitioned() && i < entries_.size(); ++i) {
    ParameterEntry& entry = entries_[i];
    if (plans_[i].parameter_stored) continue;
    const at::Tensor values = sharding_->updated_values(i);
    if (!plans_[i].separate) {
      entry.master = values;
    } else {
      entry.compute_part = values;
    }
  }
  build_home(stays, std::move(movable_frozen));
}

void ParameterStore::build_home(const std::vector<bool>& stays, std::vector<bool> movable_frozen) {
  ParameterHome::Parameters all;
  for (const ParameterEntry& entry : entries_) {
    all.trained.push_back({entry.name, entry.parameter});
    all.compute.push_back(entry.compute);
  }
  all.frozen = frozen_;
  all.stays = stays;
  all.movable_frozen = std::move(movable_frozen);
  all.frozen_dtype = options_.compute_dtype;
  all.frozen_as_int8 = options_.frozen_as_int8;
  home_->attach(std::move(all));
  if (parts_only()) give_first_values();
}

void ParameterStore::build_gradients() {
  GradientOptions options;
  for (const ParameterEntry& entry : entries_) {
    options.parameters.push_back(entry.parameter);
    options.names.push_back(entry.name);
  }
  options.accumulation = options_.accumulation_dtype;
  options.accumulates_apart = options_.accumulation_dtype != options_.compute_dtype;
  options.sparse = options_.sparse_gradients;
  options.sparse_rows = options_.sparse_rows;
  if (options_.updates_on_host) {
    early_gradients_ = std::make_unique<EarlyGradients>(accelerator_, entries_.size());
    options.complete = [this](std::size_t i, const at::Tensor& gradient) { early_gradients_->start(i, gradient); };
  }
  if (!sharding_) {
    gradients_ = std::make_unique<OneProcessGradients>(std::move(options));
    return;
  }
  ReducedGradients::Options reduced{.sharding = sharding_.get(), .store = stored_gradients_.get()};
  for (const EntryPlan& plan : plans_) {
    reduced.stored.push_back(plan.gradient_stored);
    reduced.updates.push_back(plan.part.numel > 0);
  }
  reduced.every_slot = options_.every_slot;
  gradients_ = std::make_unique<ReducedGradients>(std::move(options), std::move(reduced));
}

/// Stage 3: for each parameter of entries(), and after them of frozen(), whether it is to stay whole in memory.
std::vector<bool> ParameterStore::staying() const {
  std::vector<bool> stays;
  for (const EntryPlan& plan : plans_) stays.push_back(plan.stays);
  stays.insert(stays.end(), frozen_stays_.begin(), frozen_stays_.end());
  return stays;
}

/// Gives every parameter that has none its values, one after the other: this rank's part of them stays.
void ParameterStore::make_deferred_values() {
  if (options_.deferred) {
    options_.deferred->make([this](const c10::Storage& storage) { return take_deferred(storage); });
  }
  // Values that were made before, in host memory, leave it as the device takes its parts.
  for (Deferred& one : deferred_) {
    if (!one.taken) take_values(one);
    one.original.reset();
  }
  deferred_.clear();
}

bool ParameterStore::take_deferred(const c10::Storage& storage) {
  bool may_go = false;
  for (Deferred& one : deferred_) {
    if (storage_of(one.original) != storage.unsafeGetStorageImpl()) continue;
    const at::Tensor values = one.original.contiguous();
    sharding_->communicator().broadcast("start: values of the model", {values}, 0);
    if (!one.original.is_contiguous()) one.original.copy_(values);
    may_go = take_values(one);
  }
  return may_go;
}

/// Takes this rank's part of values that are the same on all ranks. Returns whether the memory of `original` may go.
bool ParameterStore::take_values(Deferred& one) {
  one.taken = true;
  const bool copied = storage_of(one.parameter) != storage_of(one.original);
  const bool leaves = !home_->stays(one.frozen ? entries_.size() + one.index : one.index);
  if (copied && !leaves) {
    const c10::DeviceGuard guard(one.parameter.device());
    restore_memory(*one.parameter.storage().unsafeGetStorageImpl(),
                   c10::GetAllocator(one.parameter.device().type())->allocate(one.parameter.nbytes()));
    at::Tensor(one.parameter).copy_(one.original);
  }
  if (one.frozen) {
    sharding_->frozen().take(one.index, one.original);
    return copied || leaves;
  }
  ParameterEntry& entry = entries_[one.index];
  sharding_->take(one.index, one.original);
  // Of the master's type, the part is the master.
  if (!plans_[one.index].separate) return copied || leaves;
  if (entry.master.is_meta()) {
    put_master(one.index, one.original);
  } else {
    entry.master.copy_(one.original.reshape({-1}).narrow(0, entry.offset, entry.master.numel()));
  }
  return copied || leaves;
}

/// Stage 3: gives this rank's parts their first values, and lets the parameters leave memory.
void ParameterStore::give_first_values() {
  const auto has_values = [&](std::size_t index, bool frozen) {
    return std::none_of(deferred_.begin(), deferred_.end(),
                        [&](const Deferred& one) { return one.index == index && one.frozen == frozen; });
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (has_values(i, false)) sharding_->take(i, entries_[i].compute);
  }
  for (std::size_t k = 0; k < frozen_.size(); ++k) {
    if (has_values(k, true)) sharding_->frozen().take(k, frozen_[k].tensor);
  }
  make_deferred_values();
  home_->begin();
  malloc_trim(0);  // the whole model was here, and its memory would stay the heap's
}

void ParameterStore::settle() {
  home_->settle();
  // A backward that an exception has ended leaves reductions under way.
  gradients_->settle();
}

std::string ParameterStore::give_up_what_failed() {
  std::string failure;
  const auto attempt = [&](const std::function<void()>& wait) {
    try {
      wait();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  // First, so that nothing that waits below is under way.
  attempt([&] { gradients_->settle(); });
  attempt([&] { settle(); });
  attempt([&] { gradients_->settle_store(); });
  attempt([&] { settle_stores(); });
  return failure;
}

void ParameterStore::begin_forward(const std::string& step, ParameterResidency::Pass pass) {
  home_->begin_forward(step, pass);
}

void ParameterStore::end_forward(ParameterResidency::Pass pass) {
  settle();
  home_->end_forward(pass);
}

Range ParameterStore::saved_part(std::size_t i) const {
  return sharding_ ? sharding_->owned(i) : Range{0, entries_[i].parameter.numel()};
}

double ParameterStore::sum_over_ranks(const std::string& name, double value) {
  if (!partitioned()) return value;
  settle();
  std::vector<at::Tensor> parts;
  Communicator& communicator = sharding_->communicator();
  for (int rank = 0; rank < communicator.size(); ++rank) parts.push_back(host_empty({1}, at::kDouble).fill_(value));
  communicator.all_gather(name, parts);
  double sum = 0;
  for (const at::Tensor& part : parts) sum += *part.const_data_ptr<double>();
  return sum;
}

/// `width` totals for each entry, zeros for those that have no piece in [begin, end). Of an entry that has one all are
/// there.
std::vector<double> ParameterStore::totals_of_entries(const std::string& name, std::size_t begin, std::size_t end,
                                                      const std::vector<double>& per_block, std::size_t width) {
  const std::size_t first = begin < end ? pieces_[begin].entry : 0, last = begin < end ? pieces_[end - 1].entry + 1 : 0;
  // Blocks of all entries that this rank updates, zeros where the range has none.
  std::vector<double> blocks, totals(entries_.size() * width);
  auto at = per_block.begin();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::int64_t count = blocks_in(entries_[i].master.numel()) * static_cast<std::int64_t>(width);
    if (i >= first && i < last && gradients_->has(i)) {
      blocks.insert(blocks.end(), at, at + count);
      at += count;
    } else {
      blocks.insert(blocks.end(), static_cast<std::size_t>(count), 0.0);
    }
  }
  if (sharding_) return sharding_->sum_blocks(name, blocks, width);
  auto block = blocks.begin();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    for (std::int64_t left = blocks_in(entries_[i].master.numel()); left > 0; --left) {
      for (std::size_t k = 0; k < width; ++k) totals[i * width + k] += *block++;
    }
  }
  return totals;
}

std::vector<double> ParameterStore::sum_measures(const std::string& name, const SubGroup& sub_group,
                                                 const std::vector<double>& per_block, std::size_t width) {
  const std::vector<double> totals = totals_of_entries(name, sub_group.begin, sub_group.end, per_block, width);
  std::vector<double> of_slots;
  for (const Piece& piece : pieces(sub_group)) {
    const std::size_t i = piece.entry;
    if (!gradients_->has(i)) continue;
    for (std::size_t k = 0; k < width; ++k) of_slots.push_back(totals[i * width + k]);
  }
  return of_slots;
}

std::vector<double> ParameterStore::sum_model_measures(const std::string& name, const std::vector<double>& per_block,
                                                       std::size_t width) {
  const std::vector<double> totals = totals_of_entries(name, 0, pieces_.size(), per_block, width);
  // Entries without a part here have totals all the same, so that every rank adds up the same numbers.
  std::vector<double> sums(width);
  for (std::size_t i = 0; i < totals.size(); ++i) sums[i % width] += totals[i];
  return sums;
}

void ParameterStore::set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill) {
  const at::NoGradGuard no_grad;
  home_->set_frozen(k, fill);
}

void ParameterStore::hold(const std::vector<std::size_t>& parameters) {
  settle();
  settle_stores();
  home_->hold(parameters);
}

void ParameterStore::take_values(const std::vector<std::size_t>& parameters, int root) {
  at::NoGradGuard no_grad;
  const auto of = [&](std::size_t i) {
    return i < entries_.size() ? entries_[i].compute : frozen_[i - entries_.size()].tensor;
  };
  std::vector<at::Tensor> values;
  for (const std::size_t i : parameters) values.push_back(of(i).contiguous().view({-1}));
  if (sharding_) sharding_->communicator().broadcast("values written on rank " + std::to_string(root), values, root);
  const std::vector<CompressedPart> unwritten = compressed_as_they_were(parameters).parameters;
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    if (parameters[k] >= entries_.size()) {
      set_frozen(parameters[k] - entries_.size(), [&](at::Tensor to, std::int64_t offset) {
        to.copy_(values[k].narrow(0, offset, to.numel()).view(to.sizes()));
      });
      continue;
    }
    ParameterEntry& entry = entries_[parameters[k]];
    if (!entry.compute.is_contiguous()) entry.compute.copy_(values[k].view(entry.shape));
    at::Tensor part = values[k].narrow(0, entry.offset, entry.master.numel());
    if (options_.updates_on_host) part = part.to(at::kCPU);
    if (entry.compressed) {
      // What nobody has written keeps its master, of which the compute copy has lost the last bits.
      const auto before = std::find_if(unwritten.begin(), unwritten.end(),
                                       [&](const CompressedPart& one) { return one.entry == parameters[k]; });
      const at::Tensor master = entry.master.view({-1});
      master.copy_(at::where(part == before->compute, master, part.to(at::kFloat)));
      continue;
    }
    if (entry.separate || partitioned()) {
      visit_master(parameters[k], /*changes=*/true, [&](std::size_t, at::Tensor master, std::int64_t offset) {
        master.copy_(part.narrow(0, offset, master.numel()));
      });
    }
    if (entry.compute_part.defined() && partitioned()) entry.compute_part.copy_(part);
    home_->note_written(parameters[k], values[k]);
  }
}

/// The compute copies that the masters give, where some of these parameters are compressed.
CompressedParts ParameterStore::compressed_as_they_were(const std::vector<std::size_t>& parameters) {
  if (!compresses_some(parameters)) return {};
  CompressedParts parts = compressed_;
  for (CompressedPart& part : parts.parameters) {
    part.compute = at::empty_like(part.compute);
    part.wants_scales = false;
  }
  options_.compress("values before they were written", parts, /*fresh=*/false);
  return parts;
}

bool ParameterStore::compresses_some(const std::vector<std::size_t>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [&](std::size_t i) {
    return i < entries_.size() && (entries_[i].compressed || !plans_[i].trained_state_of.empty());
  });
}

void ParameterStore::compress_taken(const std::vector<std::size_t>& parameters) {
  if (!compresses_some(parameters)) return;
  const at::NoGradGuard no_grad;
  compress("values that were written");
  share("values that were written");
  settle();
}

}  // namespace capstan
