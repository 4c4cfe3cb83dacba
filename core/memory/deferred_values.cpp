#include "core/memory/deferred_values.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/memory/operands.hpp"
#include "core/memory/page_pool.hpp"
#include "core/memory/remote_storage.hpp"

namespace capstan {
namespace {

constexpr std::string_view kRefusal = "has no values yet: the model is being built for ZeRO stage 3";
constexpr std::int64_t kCapturedElements = 16 << 10;  // a recorded operator may read so many of a tensor with values

std::string sentence() {
  return "this tensor " + std::string(kRefusal) +
         ", whose engine gives parameters their values. Operators of LibTorch may read and write it; it has no memory.";
}

/// What an operator is to tensors without values.
struct Operator {
  enum class Kind { kReads, kMakes, kViews, kWritesSelf } kind = Kind::kReads;
  bool looks_inside = false;
  bool random = false;
  bool overwrites = false;  // kWritesSelf: what self was has no influence
};

Operator facts_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  Operator facts;
  facts.random = op.hasTag(at::Tag::nondeterministic_seeded);
  if ((name == "aten::empty" && schema.overload_name() == "memory_format") ||
      (name == "aten::empty_strided" && schema.overload_name().empty())) {
    facts.kind = Operator::Kind::kMakes;
    return facts;
  }
  const bool on_cpu = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (!on_cpu && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    facts.looks_inside = true;
    return facts;
  }
  int writes = 0;
  bool aliases = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    writes += alias != nullptr && alias->isWrite();
    aliases |= alias != nullptr && !alias->isWrite();
  }
  const bool sizes_storage = name.starts_with("aten::resize_") || name == "aten::set_";
  if (aliases || (op.hasTag(at::Tag::inplace_view) && !sizes_storage)) {
    facts.kind = Operator::Kind::kViews;
  } else if (writes == 1 && !sizes_storage && schema.arguments()[0].alias_info() != nullptr &&
             schema.returns().size() == 1 && schema.returns()[0].alias_info() != nullptr) {
    facts.kind = Operator::Kind::kWritesSelf;
    facts.overwrites = facts.random || name == "aten::zero_" || name == "aten::fill_" || name == "aten::copy_";
  } else {
    // A factory as zeros or randn, a copy as clone: made of operators that tell.
    facts.looks_inside = !on_cpu && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  }
  return facts;
}

/// Puts a generator back to where it was.
class GeneratorState {
 public:
  GeneratorState(at::Generator generator, const at::Tensor& state)
      : generator_(std::move(generator)), before_(generator_.get_state()) {
    generator_.set_state(state);
  }
  ~GeneratorState() { generator_.set_state(before_); }

 private:
  at::Generator generator_;
  at::Tensor before_;
};

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.nbytes() == tensor.storage().nbytes();
}

bool is_list(const c10::IValue& value) { return value.isTensorList() || value.isOptionalTensorList(); }

}  // namespace

class DeferredValues::Recorder final : public OperatorPolicy {
 public:
  explicit Recorder(std::int64_t smallest) : smallest_(smallest), pages_(0) {}

  void before(const c10::OperatorHandle&, OperatorStack&, std::size_t) override {}
  void after(const c10::OperatorHandle&) noexcept override {}
  bool looks_inside(const c10::OperatorHandle& op) override;
  bool stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;

  bool has(const at::Tensor& tensor) const { return group_of(tensor) != nullptr; }
  std::string reader(const at::Tensor& tensor) const;
  void make(const at::Tensor& tensor);
  void make(const std::function<bool(const c10::Storage&)>& made);

 private:
  struct Record {
    std::uint64_t number;
    c10::OperatorHandle op;
    OperatorStack arguments;
    at::Generator generator;  // set for a random operator
    at::Tensor state;         // the state that the generator had before the operator
  };
  /// Storages whose values depend on each other, in the order in which they came to be.
  struct Group {
    std::vector<std::pair<std::uint64_t, c10::Storage>> storages;
    std::vector<Record> records;
  };

  const Operator& facts(const c10::OperatorHandle& op);
  std::shared_ptr<Group> group_of(const at::Tensor& tensor) const;
  void make_without_memory(const c10::OperatorHandle& op, OperatorStack& stack);
  bool record(const c10::OperatorHandle& op, const Operator& known, OperatorStack& stack, std::size_t argument_count);
  void join(const std::shared_ptr<Group>& group, const std::shared_ptr<Group>& other);
  void replay(Group& group);
  void make_now(Group& group);
  void give_memory(const c10::Storage& storage) {
    restore_memory(*storage.unsafeGetStorageImpl(), pages_.allocate(storage.nbytes()));
  }

  std::int64_t smallest_;
  PagePool pages_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<const void*, Operator> operators_;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<Group>> groups_;
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, std::string>> readers_;
  std::uint64_t number_ = 0;
};

const Operator& DeferredValues::Recorder::facts(const c10::OperatorHandle& op) {
  const auto found = operators_.find(&op.schema());
  return found != operators_.end() ? found->second : operators_.emplace(&op.schema(), facts_of(op)).first->second;
}

bool DeferredValues::Recorder::looks_inside(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex_);
  return facts(op).looks_inside;
}

std::shared_ptr<DeferredValues::Recorder::Group> DeferredValues::Recorder::group_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto found = groups_.find(tensor.storage().unsafeGetStorageImpl());
  return found == groups_.end() ? nullptr : found->second;
}

bool DeferredValues::Recorder::stands_in(const c10::OperatorHandle& op, OperatorStack& stack,
                                         std::size_t argument_count) {
  const std::lock_guard lock(mutex_);
  const Operator& known = facts(op);
  if (known.kind == Operator::Kind::kViews) return false;
  if (known.kind == Operator::Kind::kMakes) {
    make_without_memory(op, stack);
    return true;
  }
  if (known.kind == Operator::Kind::kWritesSelf && record(op, known, stack, argument_count)) return true;
  for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t) {
    const auto group = group_of(operand);
    if (!group) return;
    make_now(*group);
    for (const auto& [number, storage] : group->storages) {
      readers_.emplace_back(storage.getWeakStorageImpl(), op.schema().name());
    }
  });
  return false;
}

void DeferredValues::Recorder::make_without_memory(const c10::OperatorHandle& op, OperatorStack& stack) {
  op.callBoxed(&stack);
  const at::Tensor& tensor = stack.back().toTensor();
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || !at::isFloatingType(tensor.scalar_type()) ||
      tensor.numel() == 0 || tensor.numel() < smallest_) {
    return;
  }
  const c10::Storage& storage = tensor.storage();
  drop_memory(*storage.unsafeGetStorageImpl(), sentence());
  auto group = std::make_shared<Group>();
  group->storages.emplace_back(number_++, storage);
  groups_[storage.unsafeGetStorageImpl()] = std::move(group);
}

/// False where the operator is to run now.
bool DeferredValues::Recorder::record(const c10::OperatorHandle& op, const Operator& known, OperatorStack& stack,
                                      std::size_t argument_count) {
  const std::size_t first = stack.size() - argument_count;
  const at::Tensor self = stack[first].toTensor();
  const auto group = group_of(self);
  if (!group || (at::GradMode::is_enabled() && self.requires_grad())) return false;
  Record record{number_, op, OperatorStack(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end()), {}, {}};
  // Aliases: a tensor may be given other values (set_data) before this one runs.
  record.arguments.front() = self.detach();
  std::vector<std::shared_ptr<Group>> sources;
  for (std::size_t i = 1; i < argument_count; ++i) {
    c10::IValue& value = record.arguments[i];
    if (is_list(value)) return false;
    if (value.isGenerator()) record.generator = value.toGenerator();
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& source = value.toTensor();
    if (known.random || (at::GradMode::is_enabled() && source.requires_grad())) return false;
    if (auto waiting = group_of(source)) {
      sources.push_back(std::move(waiting));
      value = source.detach();
    } else if (source.numel() <= kCapturedElements) {
      value = source.clone();  // it may change
    } else {
      return false;
    }
  }
  if (known.overwrites && fills_its_storage(self) && group->storages.size() == 1) group->records.clear();
  if (known.random) {
    if (!record.generator.defined()) record.generator = at::globalContext().defaultGenerator(at::kCPU);
    record.state = record.generator.get_state();
    give_memory(self.storage());
    OperatorStack arguments = record.arguments;
    op.callBoxed(&arguments);
    drop_memory(*self.storage().unsafeGetStorageImpl(), sentence());
  }
  ++number_;
  group->records.push_back(std::move(record));
  for (const auto& source : sources) join(group, source);
  stack.resize(first);
  stack.emplace_back(self);
  return true;
}

void DeferredValues::Recorder::join(const std::shared_ptr<Group>& group, const std::shared_ptr<Group>& other) {
  if (group == other) return;
  for (auto& [number, storage] : other->storages) groups_[storage.unsafeGetStorageImpl()] = group;
  std::move(other->storages.begin(), other->storages.end(), std::back_inserter(group->storages));
  std::move(other->records.begin(), other->records.end(), std::back_inserter(group->records));
  const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(group->storages.begin(), group->storages.end(), earlier);
}

void DeferredValues::Recorder::replay(Group& group) {
  const at::NoGradGuard no_grad;
  for (const auto& [number, storage] : group.storages) give_memory(storage);
  std::sort(group.records.begin(), group.records.end(),
            [](const Record& a, const Record& b) { return a.number < b.number; });
  for (Record& record : group.records) {
    std::optional<GeneratorState> state;
    if (record.state.defined()) state.emplace(record.generator, record.state);
    try {
      record.op.callBoxed(&record.arguments);
    } catch (const c10::Error& error) {
      throw RuntimeFault("values of a model that was built for ZeRO stage 3, operator " + record.op.schema().name() +
                         ": " + error.what_without_backtrace());
    }
  }
  group.records.clear();
}

void DeferredValues::Recorder::make_now(Group& group) {
  replay(group);
  for (const auto& [number, storage] : group.storages) groups_.erase(storage.unsafeGetStorageImpl());
}

std::string DeferredValues::Recorder::reader(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return {};
  for (const auto& [weak, name] : readers_) {
    const auto storage = weak.lock();
    if (storage && storage.get() == tensor.storage().unsafeGetStorageImpl()) return name;
  }
  return {};
}

void DeferredValues::Recorder::make(const at::Tensor& tensor) {
  if (const auto group = group_of(tensor)) make_now(*group);
}

void DeferredValues::Recorder::make(const std::function<bool(const c10::Storage&)>& made) {
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& [storage, group] : groups_) groups.push_back(group);
  groups_.clear();
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a->storages.front().first < b->storages.front().first; });
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (auto& group : groups) {
    replay(*group);
    for (auto& [number, storage] : group->storages) {
      if (storage.use_count() > 1 && made(storage)) drop_memory(*storage.unsafeGetStorageImpl(), sentence());
    }
    group.reset();
  }
}

DeferredValues::DeferredValues(std::int64_t smallest) : recorder_(std::make_unique<Recorder>(smallest)) {}
DeferredValues::~DeferredValues() = default;

DeferredValues::Scope::Scope(DeferredValues& values) : scope_(*values.recorder_) {}

bool DeferredValues::has(const at::Tensor& tensor) const { return recorder_->has(tensor); }
std::string DeferredValues::reader(const at::Tensor& tensor) const { return recorder_->reader(tensor); }
void DeferredValues::make(const at::Tensor& tensor) { recorder_->make(tensor); }
void DeferredValues::make(const std::function<bool(const c10::Storage&)>& made) { recorder_->make(made); }

at::Tensor DeferredValues::without_memory(const at::Tensor& like, at::ScalarType dtype, at::Device device) {
  at::Tensor tensor = at::empty_like(like, like.options().dtype(dtype).device(device).requires_grad(false));
  drop_memory(*tensor.storage().unsafeGetStorageImpl(), sentence());
  return tensor;
}

bool DeferredValues::is_refusal(std::string_view message) { return message.find(kRefusal) != std::string_view::npos; }

}  // namespace capstan
