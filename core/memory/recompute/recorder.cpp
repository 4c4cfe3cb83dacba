#include "core/memory/recompute/recorder.hpp"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/memory/operands.hpp"

namespace capstan {
namespace {

thread_local Recorder* recorder_here = nullptr;

c10::VariableVersion counter_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return c10::VariableVersion(c10::VariableVersion::DISABLED);
  return tensor.unsafeGetTensorImpl()->version_counter();
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// What the graph does not hold, so that a tape may.
at::Tensor held(const at::Tensor& tensor) { return tensor.is_leaf() ? tensor : tensor.tensor_data(); }

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.is_non_overlapping_and_dense() && tensor.storage().nbytes() == tensor.nbytes();
}

template <typename See>
void for_each_result(const OperatorStack& stack, std::size_t count, const See& see) {
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      see(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& tensor : stack[i].toTensorVector()) see(tensor);
    }
  }
}

at::Generator generator_of(const OperatorStack& stack, std::size_t argument_count) {
  at::Device device = at::kCPU;
  bool found = false;
  for (std::size_t i = stack.size() - argument_count; i < stack.size(); ++i) {
    if (stack[i].isGenerator()) return stack[i].toGenerator();
  }
  for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t) {
    if (found || !operand.defined()) return;
    found = true;
    device = operand.device();
  });
  return device.is_meta() ? at::Generator() : at::globalContext().defaultGenerator(device);
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

/// What autograd gets for a tensor that it saves in a region.
class Recorder::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(Recorder* recorder) : recorder_(recorder) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    counter_ = counter_of(tensor);
    version_ = version_of(tensor);
    std::exchange(recorder_, nullptr)->pack(tensor, *this);
  }
  at::Tensor call_unpack_hook() override {
    // LibTorch does not look at versions where there are hooks.
    if (counter_.enabled() && counter_.current_version() != version_) {
      throw RuntimeFault(
          "one of the variables needed for gradient computation has been modified by an inplace operation" +
          (tape_ ? ", in layer '" + tape_->layer() + "'" : std::string()) + ": it is at version " +
          std::to_string(counter_.current_version()) + "; expected version " + std::to_string(version_) + " instead.");
    }
    if (kept_.defined()) return kept_;
    tape_->compute(*slot_);
    return slot_->tensor;
  }
  void keep(const at::Tensor& tensor) { kept_ = tensor.tensor_data(); }
  void wait_for(std::shared_ptr<Tape> tape, std::shared_ptr<Tape::Slot> slot) {
    tape_ = std::move(tape);
    slot_ = std::move(slot);
  }

 private:
  Recorder* recorder_;
  at::Tensor kept_;
  std::shared_ptr<Tape> tape_;
  std::shared_ptr<Tape::Slot> slot_;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  std::uint32_t version_ = 0;
};

Recorder::Here::Here(Recorder* recorder) : outer_(std::exchange(recorder_here, recorder)) {}
Recorder::Here::~Here() { recorder_here = outer_; }
Recorder* Recorder::here() { return recorder_here; }

Recorder::Recorder(Region region, std::vector<std::weak_ptr<Tape>>& tapes, OperatorBook& book)
    : region_(std::move(region)), tapes_(tapes), book_(book) {}

Recorder::~Recorder() = default;

void Recorder::begin(const at::Tensor& boundary) { tape().set_boundary(add_external(boundary).index); }

Recorder::Memory* Recorder::memory_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const auto found = memories_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == memories_.end()) return nullptr;
  if (!found->second.storage.expired()) return &found->second;
  memories_.erase(found);
  return nullptr;
}

Recorder::Memory& Recorder::add_memory(const at::Tensor& tensor, bool own) {
  const c10::Storage& storage = tensor.storage();
  Memory memory{storage.getWeakStorageImpl(), memory_count_++, last_entry(), version_of(tensor), own, false};
  return memories_.insert_or_assign(storage.unsafeGetStorageImpl(), std::move(memory)).first->second;
}

/// As a value, or as an external that is what it was; kNone: the tape does not know it so.
Tape::Operand Recorder::known_operand(const at::Tensor& tensor) {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found == known_.end()) return {};
  if (found->second.tensor.expired()) {
    known_.erase(found);
    return {};
  }
  const Tape::Operand& operand = found->second.operand;
  if (operand.kind == Tape::Operand::Kind::kValue) {
    const Memory* memory = memory_of(tensor);
    if (memory == nullptr || memory->lost || memory->version != version_of(tensor)) return {};
  } else {
    const Tape::External& external = tape().externals()[static_cast<std::size_t>(operand.index)];
    if (external.copied || external.version != version_of(tensor)) return {};
  }
  Tape::Operand now = operand;
  now.requires_grad = tensor.requires_grad();
  return now;
}

Tape::Operand Recorder::add_external(const at::Tensor& tensor) {
  auto& externals = tape().externals();
  const auto index = static_cast<std::int32_t>(externals.size());
  externals.push_back({held(tensor), counter_of(tensor), version_of(tensor)});
  if (tensor.has_storage() && memory_of(tensor) == nullptr) add_memory(tensor, false);
  const Tape::Operand operand{Tape::Operand::Kind::kExternal, tensor.requires_grad(), index};
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(), Known{WeakTensor(tensor.getIntrusivePtr()), operand});
  empties_.erase(tensor.unsafeGetTensorImpl());
  return operand;
}

Tape::Operand Recorder::operand_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const Tape::Operand known = known_operand(tensor);
  if (known.kind == Tape::Operand::Kind::kNone) return add_external(tensor);
  if (known.kind == Tape::Operand::Kind::kValue) digest_again(known.index, tensor);
  return known;
}

/// What a saved tensor holds now counts: memory that was written without an operator since shows in no version.
void Recorder::digest_again(std::int32_t value, const at::Tensor& tensor) {
  if (!region_.digests) return;
  const auto found = slots_.find(value);
  const std::shared_ptr<Tape::Slot> slot = found == slots_.end() ? nullptr : found->second.lock();
  if (slot && slot->digest) slot->digest = digest_of(tensor);
}

/// A tensor whose elements operators that run again have made.
bool Recorder::is_own(const at::Tensor& tensor) {
  if (known_operand(tensor).kind != Tape::Operand::Kind::kValue) return false;
  const Memory* memory = memory_of(tensor);
  return memory != nullptr && memory->own;
}

/// Turns memory without values, all of which is about to be overwritten, into the region's own.
bool Recorder::promote(const at::Tensor& tensor) {
  const auto found = empties_.find(tensor.unsafeGetTensorImpl());
  if (found == empties_.end()) return false;
  const bool untouched = !found->second.tensor.expired() && found->second.version == version_of(tensor);
  empties_.erase(found);
  if (!untouched || !fills_its_storage(tensor) || tensor.requires_grad() || memory_of(tensor) != nullptr) return false;
  Tape::Entry entry;
  entry.sizes = tensor.sizes().vec();
  entry.strides = tensor.strides().vec();
  entry.options = tensor.options();
  tape().entries().push_back(std::move(entry));
  Memory& memory = add_memory(tensor, true);
  const std::int32_t value = tape().add_value(memory.number);
  tape().entries().back().results.push_back(value);
  const Tape::Operand operand{Tape::Operand::Kind::kValue, false, value};
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(), Known{WeakTensor(tensor.getIntrusivePtr()), operand});
  return true;
}

bool Recorder::writes_outside(const OperatorStack& stack, std::size_t argument_count) {
  bool outside = false;
  for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t argument) {
    if (!running_.facts->writes[argument] || !operand.defined()) return;
    running_.written.push_back(operand);
    if (is_own(operand)) return;
    if (running_.facts->overwrites && argument == 0 && promote(operand)) return;
    outside = true;
  });
  return outside;
}

bool Recorder::looks_inside(const c10::OperatorHandle& op) {
  if (recorder_here != this || !region_.looks_inside) return false;
  const OperatorFacts& facts = book_.of(op);
  return facts.composite && !region_.keep.contains(facts.name);
}

void Recorder::before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  if (recorder_here != this) return;
  running_ = {};
  const OperatorFacts& facts = book_.of(op);
  if (!facts.gives_tensors && !facts.writes_any) return;  // a number, which later operators have in their arguments
  running_.facts = &facts;
  bool works_on_tensors = false;
  for_each_operand(stack, argument_count,
                   [&](const at::Tensor& operand, std::size_t) { works_on_tensors |= operand.defined(); });
  const bool outside = facts.writes_any && writes_outside(stack, argument_count);
  for (const at::Tensor& written : running_.written) {
    if (!written.has_storage()) continue;
    for (const std::weak_ptr<Tape>& weak : tapes_) {
      if (const auto tape = weak.lock()) tape->before_write(written.storage().unsafeGetStorageImpl());
    }
  }
  running_.recorded =
      works_on_tensors && !outside && !facts.allocates && facts.repeatable && !region_.keep.contains(facts.name);
  if (running_.recorded) add_entry(op, stack, argument_count);
}

void Recorder::add_entry(const c10::OperatorHandle& op, const OperatorStack& stack, std::size_t argument_count) {
  Tape::Entry entry;
  entry.op = op;
  entry.grad_mode = at::GradMode::is_enabled();
  const auto take = [&](const at::Tensor& tensor) { entry.operands.push_back(operand_of(tensor)); };
  for (std::size_t i = stack.size() - argument_count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    Tape::Argument argument;
    if (value.isTensor()) {
      argument.kind = Tape::Argument::Kind::kTensor;
      take(value.toTensor());
    } else if (value.isTensorList()) {
      argument.kind = Tape::Argument::Kind::kTensors;
      const auto tensors = value.toTensorVector();
      argument.count = tensors.size();
      for (const at::Tensor& tensor : tensors) take(tensor);
    } else if (value.isOptionalTensorList()) {
      argument.kind = Tape::Argument::Kind::kOptionalTensors;
      const auto tensors = value.toOptionalTensorVector();
      argument.count = tensors.size();
      for (const auto& tensor : tensors) take(tensor.value_or(at::Tensor()));
    } else {
      // A script may change a list after the call.
      argument.plain = value.isList() ? value.deepcopy() : value;
    }
    entry.arguments.push_back(std::move(argument));
  }
  if (running_.facts->random) {
    entry.generator = generator_of(stack, argument_count);
    if (entry.generator.defined()) entry.generator_state = state_of(entry.generator);
  }
  tape().entries().push_back(std::move(entry));
}

void Recorder::add_result(Tape::Entry& entry, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return entry.results.push_back(-1);
  const Tape::Operand known = known_operand(tensor);
  if (known.kind != Tape::Operand::Kind::kNone) {  // an operand itself
    return entry.results.push_back(known.kind == Tape::Operand::Kind::kValue ? known.index : -1);
  }
  Memory* memory = memory_of(tensor);
  if (memory == nullptr) memory = &add_memory(tensor, true);
  const std::int32_t value = tape().add_value(memory->number);
  const Tape::Operand operand{Tape::Operand::Kind::kValue, tensor.requires_grad(), value};
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(), Known{WeakTensor(tensor.getIntrusivePtr()), operand});
  entry.results.push_back(value);
}

void Recorder::returned(const c10::OperatorHandle& op, OperatorStack& stack) {
  if (recorder_here != this || running_.facts == nullptr) return;
  const std::size_t results = op.schema().returns().size();
  if (!running_.recorded) {
    for (const at::Tensor& written : running_.written) {
      if (Memory* memory = memory_of(written); memory != nullptr && memory->own) memory->lost = true;
    }
    if (running_.facts->allocates) {
      for_each_result(stack, results, [&](const at::Tensor& made) {
        if (!made.defined()) return;
        empties_.insert_or_assign(made.unsafeGetTensorImpl(),
                                  Empty{WeakTensor(made.getIntrusivePtr()), version_of(made)});
      });
    }
    running_ = {};
    return;
  }
  Tape::Entry& entry = tape().entries().back();
  for (const at::Tensor& written : running_.written) {
    Memory* memory = memory_of(written);
    if (memory == nullptr) continue;
    memory->version = version_of(written);
    memory->last_writer = last_entry();
    entry.writes.push_back(memory->number);
  }
  for_each_result(stack, results, [&](const at::Tensor& made) { add_result(entry, made); });
  settle_saved();
  running_ = {};
}

/// What the operator saved and then returned is a value like others.
void Recorder::settle_saved() {
  auto& fills = tape().fills();
  for (std::size_t i = 0; i < running_.own.size(); ++i) {
    const auto found = known_.find(running_.own_of[i]);
    if (found == known_.end() || found->second.operand.kind != Tape::Operand::Kind::kValue) continue;
    Tape::Fill& fill = fills[running_.own[i]];
    fill.operand = found->second.operand;
    fill.operand.requires_grad = false;
    fill.saved = -1;
    slots_.insert_or_assign(fill.operand.index, fill.slot);
  }
}

void Recorder::after(const c10::OperatorHandle&) noexcept {
  if (recorder_here != this || running_.facts == nullptr) return;
  if (running_.recorded) {  // it threw: what it changed is not known
    for (const at::Tensor& written : running_.written) {
      if (Memory* memory = memory_of(written)) memory->lost = true;
    }
    auto& fills = tape().fills();
    while (!fills.empty() && fills.back().after == last_entry()) fills.pop_back();
    tape().entries().pop_back();
  }
  running_ = {};
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recorder::hooks() { return std::make_unique<Hooks>(this); }

std::shared_ptr<Tape::Slot> Recorder::add_fill(Tape::Operand operand, std::int32_t saved, const at::Tensor& tensor) {
  auto slot = std::make_shared<Tape::Slot>();
  // LibTorch's workspaces are bytes, of which some are never written.
  if (region_.digests && !tensor.is_meta() && tensor.scalar_type() != at::kByte) slot->digest = digest_of(tensor);
  Tape::Fill fill;
  fill.after = last_entry();
  fill.writer = fill.after;
  if (const Memory* memory = saved < 0 ? memory_of(tensor) : nullptr) fill.writer = memory->last_writer;
  operand.requires_grad = false;
  fill.operand = operand;
  fill.saved = saved;
  fill.slot = slot;
  tape().fills().push_back(std::move(fill));
  return slot;
}

void Recorder::pack(const at::Tensor& tensor, Hooks& hooks) {
  const std::int32_t number = running_.saved++;
  const Tape::Operand operand = known_operand(tensor);
  const Memory* memory = memory_of(tensor);
  // The first memory is the boundary's. What shares the memory of another external takes none of its own.
  const bool of_boundary = memory != nullptr && memory->number == 0 && tape().packs_boundary();
  if (memory != nullptr && !memory->own && !of_boundary) return hooks.keep(tensor);
  if (operand.kind == Tape::Operand::Kind::kValue) {
    std::weak_ptr<Tape::Slot>& known = slots_[operand.index];
    std::shared_ptr<Tape::Slot> slot = known.lock();
    if (!slot) known = slot = add_fill(operand, -1, tensor);
    digest_again(operand.index, tensor);
    return hooks.wait_for(region_.tape, slot);
  }
  if (operand.kind == Tape::Operand::Kind::kExternal) {
    if (operand.index != tape().boundary() || !tape().packs_boundary()) return hooks.keep(tensor);
    return hooks.wait_for(region_.tape, add_fill(operand, -1, tensor));
  }
  if (!running_.recorded) return hooks.keep(tensor);
  hooks.wait_for(region_.tape, add_fill({}, number, tensor));
  running_.own.push_back(tape().fills().size() - 1);
  running_.own_of.push_back(tensor.unsafeGetTensorImpl());
}

}  // namespace capstan
