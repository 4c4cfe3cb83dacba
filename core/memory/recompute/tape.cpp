#include "core/memory/recompute/tape.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <map>

#include "core/errors.hpp"
#include "core/memory/recompute/saved_tensors.hpp"
#include "core/xxh3.hpp"

// ATen/autocast_mode.h reads all of ATen, which takes longer than this whole file may.
namespace at::autocast {
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);
TORCH_API void set_autocast_dtype(c10::DeviceType device_type, c10::ScalarType dtype);
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
}  // namespace at::autocast

namespace capstan {
namespace {

constexpr std::array<c10::DeviceType, std::tuple_size_v<AutocastTypes>> kAutocastDevices = {
    c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

/// Autocast as a region's forward had it, whatever backward runs under. Casts are not kept: nobody would drop them.
class AutocastAsThen {
 public:
  explicit AutocastAsThen(const AutocastTypes& dtypes) : cached_(at::autocast::is_autocast_cache_enabled()) {
    for (std::size_t i = 0; i < now_.size(); ++i) {
      now_[i] = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
      at::autocast::set_autocast_dtype(kAutocastDevices[i], dtypes[i]);
    }
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastAsThen() {
    for (std::size_t i = 0; i < now_.size(); ++i) at::autocast::set_autocast_dtype(kAutocastDevices[i], now_[i]);
    at::autocast::set_autocast_cache_enabled(cached_);
  }
  AutocastAsThen(const AutocastAsThen&) = delete;

 private:
  AutocastTypes now_;
  bool cached_;
};

/// Brings the present states of generators back that random operators have run again with old ones.
class GeneratorsAsNow {
 public:
  GeneratorsAsNow() = default;
  ~GeneratorsAsNow() {
    for (auto& [impl, kept] : kept_) set(kept.first, kept.second);
  }
  GeneratorsAsNow(const GeneratorsAsNow&) = delete;

  void rewind(at::Generator generator, const at::Tensor& state) {
    auto [place, is_new] = kept_.try_emplace(generator.unsafeGetGeneratorImpl());
    if (is_new) {
      const std::lock_guard lock(generator.mutex());
      place->second = {generator, generator.get_state()};
    }
    set(generator, state);
  }

 private:
  static void set(at::Generator& generator, const at::Tensor& state) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  std::map<const c10::GeneratorImpl*, std::pair<at::Generator, at::Tensor>> kept_;
};

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), tensor.sizes()); }

}  // namespace

/// Each element's bits times an odd number of its place, summed up modulo 2^64: one number is sent to the host, and
/// another value of any single element gives another sum.
std::uint64_t digest_on_device(const at::Tensor& tensor) {
  constexpr auto kOdd = static_cast<std::int64_t>(0x9E3779B97F4A7C15);
  const at::ScalarType integer = tensor.element_size() == 1   ? at::kByte
                                 : tensor.element_size() == 2 ? at::kShort
                                 : tensor.element_size() == 4 ? at::kInt
                                                              : at::kLong;
  const at::Tensor bits = tensor.contiguous().view({-1}).view(integer).to(at::kLong);
  const at::Tensor places = at::arange(bits.numel(), bits.options()).mul_(kOdd).bitwise_or_(1);
  return static_cast<std::uint64_t>(bits.mul(places).sum().item<std::int64_t>());
}

std::uint64_t digest_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const UnseenScope unseen;
  if (!tensor.is_cpu() && tensor.element_size() <= 8) return digest_on_device(tensor.detach());
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return xxh3(values.const_data_ptr(), values.nbytes());
}

/// Takes what operators save while they run again: those tensors that somebody waits for.
class Tape::Collector final : public SavedTensorTaker {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(*this); }

  void begin() {
    next_ = 0;
    taken_.clear();
  }
  void want(std::int32_t number) { wanted_.push_back(number); }
  void end() { wanted_.clear(); }
  /// Undefined where the operator has not saved so many.
  at::Tensor taken(std::int32_t number) const {
    const auto found = taken_.find(number);
    return found == taken_.end() ? at::Tensor() : found->second;
  }

 private:
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(Collector& c) : collector(c) {}
    void call_pack_hook(const at::Tensor& tensor) override { collector.take(tensor); }
    at::Tensor call_unpack_hook() override { throw RuntimeFault("what runs again has no backward of its own."); }
    Collector& collector;
  };
  void take(const at::Tensor& tensor) {
    const std::int32_t number = next_++;
    if (std::find(wanted_.begin(), wanted_.end(), number) != wanted_.end()) {
      taken_.emplace(number, tensor.tensor_data());
    }
  }

  std::int32_t next_ = 0;
  std::vector<std::int32_t> wanted_;
  std::map<std::int32_t, at::Tensor> taken_;
};

Tape::Tape(std::string layer, OperatorPolicy* inside, std::unique_ptr<RegionKeeper> keeper)
    : layer_(std::move(layer)), inside_(inside), keeper_(std::move(keeper)) {
  for (std::size_t i = 0; i < autocast_.size(); ++i)
    autocast_[i] = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
}

Tape::~Tape() {
  if (!keeper_) return;
  if (packed_) keeper_->drop(*packed_);
  if (closed_) keeper_->moment(RegionKeeper::Moment::kReleased);
}

void Tape::end() {
  const std::lock_guard lock(mutex_);
  if (keeper_ && packed_) keeper_->drop(*packed_);
  packed_.reset();
  keeper_.reset();
  ended_ = true;
}

std::int32_t Tape::add_value(std::int32_t memory) {
  memory_of_.push_back(memory);
  return static_cast<std::int32_t>(memory_of_.size()) - 1;
}

void Tape::before_write(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  for (External& external : externals_) {
    if (external.copied || !external.tensor.defined() || !external.tensor.has_storage()) continue;
    if (external.tensor.storage().unsafeGetStorageImpl() != storage) continue;
    const at::NoGradGuard no_grad;
    external.tensor = at::clone(external.tensor);
    external.copied = true;
  }
}

Tape::Plan Tape::plan() const {
  Plan plan{std::vector<bool>(entries_.size()), std::vector<std::int32_t>(memory_of_.size(), -1),
            std::vector<bool>(externals_.size())};
  std::vector<bool> memories;  // whose elements are needed
  const auto need = [&](const Operand& operand, std::int32_t at) {
    const auto index = static_cast<std::size_t>(operand.index);
    if (operand.kind == Operand::Kind::kExternal) plan.externals[index] = true;
    if (operand.kind != Operand::Kind::kValue) return;
    plan.last_use[index] = std::max(plan.last_use[index], at);
    const auto memory = static_cast<std::size_t>(memory_of_[index]);
    if (memories.size() <= memory) memories.resize(memory + 1);
    memories[memory] = true;
  };
  const auto is_needed = [&](const Entry& entry) {
    const auto value = [&](std::int32_t result) {
      return result >= 0 && plan.last_use[static_cast<std::size_t>(result)] >= 0;
    };
    const auto memory = [&](std::int32_t written) {
      return static_cast<std::size_t>(written) < memories.size() && memories[static_cast<std::size_t>(written)];
    };
    return std::any_of(entry.results.begin(), entry.results.end(), value) ||
           std::any_of(entry.writes.begin(), entry.writes.end(), memory);
  };
  auto fill = fills_.rbegin();
  for (auto i = static_cast<std::int32_t>(entries_.size()) - 1; i >= -1; --i) {
    bool saves = false;
    for (; fill != fills_.rend() && fill->after == i; ++fill) {
      const std::shared_ptr<Slot> slot = fill->slot.lock();
      if (!slot || slot->tensor.defined()) continue;
      saves |= fill->saved >= 0;
      need(fill->operand, i);
    }
    if (i < 0) break;
    const Entry& entry = entries_[static_cast<std::size_t>(i)];
    if (!saves && !is_needed(entry)) continue;
    plan.runs[static_cast<std::size_t>(i)] = true;
    for (const Operand& operand : entry.operands) need(operand, i);
  }
  return plan;
}

void Tape::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  const Plan needed = plan();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!needed.runs[i]) entries_[i] = Entry{};
  }
  for (std::size_t i = 0; i < externals_.size(); ++i) {
    if (!needed.externals[i]) externals_[i].tensor.reset();
  }
  if (boundary_ < 0 || !packs_boundary()) return;
  External& boundary = externals_[static_cast<std::size_t>(boundary_)];
  if (!boundary.tensor.defined()) return;
  packed_ = keeper_->pack(boundary.tensor);
  boundary.tensor.reset();
}

void Tape::fetch_boundary() {
  if (!packed_) return;
  External& boundary = externals_[static_cast<std::size_t>(boundary_)];
  if (!boundary.tensor.defined()) boundary.tensor = keeper_->unpack(*packed_);
}

void Tape::check_externals(const Plan& plan) const {
  for (std::size_t i = 0; i < externals_.size(); ++i) {
    const External& external = externals_[i];
    if (!plan.externals[i] || external.copied || !external.counter.enabled()) continue;
    if (external.counter.current_version() == external.version) continue;
    throw RuntimeFault("layer '" + layer_ + "' cannot be computed again: a tensor that it used, " +
                       shape_of(external.tensor) +
                       ", was changed in place after the layer had run. Change a copy of it, or leave the layer out of "
                       "activation checkpointing (capstan.recompute.layers).");
  }
}

void Tape::compute(Slot& slot) {
  const std::lock_guard lock(mutex_);
  if (slot.tensor.defined()) return;
  if (ended_) {
    throw RuntimeFault("layer '" + layer_ +
                       "' cannot be computed again: its engine has ended. Call backward before that.");
  }
  if (keeper_) keeper_->moment(RegionKeeper::Moment::kBegin);
  replay();
  if (keeper_) keeper_->moment(RegionKeeper::Moment::kEnd);
  if (slot.tensor.defined()) return;
  throw RuntimeFault("layer '" + layer_ +
                     "': an operator that ran again did not save what it had saved in forward. Leave the layer out of "
                     "activation checkpointing (capstan.recompute.layers).");
}

at::Tensor Tape::tensor_of(const Operand& operand, const std::vector<at::Tensor>& values) const {
  if (operand.kind == Operand::Kind::kNone) return {};
  const auto index = static_cast<std::size_t>(operand.index);
  const at::Tensor& tensor = operand.kind == Operand::Kind::kValue ? values[index] : externals_[index].tensor;
  if (tensor.requires_grad() == operand.requires_grad) return tensor;
  return operand.requires_grad ? as_result(tensor) : tensor.tensor_data();
}

void Tape::run_entry(const Entry& entry, std::vector<at::Tensor>& values) const {
  if (!entry.op) {
    values[static_cast<std::size_t>(entry.results.front())] =
        at::empty_strided(entry.sizes, entry.strides, entry.options);
    return;
  }
  OperatorStack stack;
  auto operand = entry.operands.begin();
  const auto next = [&] { return tensor_of(*operand++, values); };
  for (const Argument& argument : entry.arguments) {
    switch (argument.kind) {
      case Argument::Kind::kPlain:
        stack.push_back(argument.plain);
        break;
      case Argument::Kind::kTensor:
        stack.emplace_back(next());
        break;
      case Argument::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (std::size_t i = 0; i < argument.count; ++i) list.push_back(next());
        stack.emplace_back(std::move(list));
        break;
      }
      case Argument::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (std::size_t i = 0; i < argument.count; ++i) {
          at::Tensor tensor = next();
          list.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  c10::impl::LocalDispatchKeySet keys = entry.keys;
  if (inside_ != nullptr) keys.excluded_ = keys.excluded_.remove(kInterceptorKey);
  {
    const c10::impl::ForceDispatchKeyGuard as_then(keys);
    const at::AutoGradMode grad_mode(entry.grad_mode);
    entry.op->callBoxed(stack);
  }
  std::size_t result = 0;
  const auto keep = [&](const at::Tensor& tensor) {
    const std::int32_t value = entry.results.at(result++);
    if (value >= 0) values[static_cast<std::size_t>(value)] = tensor;
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      keep(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) keep(tensor);
    }
  }
}

void Tape::fill(const Fill& fill, const at::Tensor& tensor) const {
  const std::shared_ptr<Slot> slot = fill.slot.lock();
  if (!slot || slot->tensor.defined() || !tensor.defined()) return;
  slot->tensor = tensor.tensor_data();
  if (!slot->digest || digest_of(slot->tensor) == *slot->digest) return;
  const auto at = static_cast<std::size_t>(std::max(fill.writer, 0));
  const bool named = fill.writer >= 0 && entries_[at].op;
  throw RuntimeFault("recomputed " + (named ? entries_[at].op->schema().name() : std::string("memory")) +
                     " of layer '" + layer_ +
                     "' differs from the forward: does the model write memory without operators, by " +
                     "data_ptr() for instance? Write with operators, keep that operator's results " +
                     "(capstan.recompute.keep), or leave the layer out (capstan.recompute.layers).");
}

void Tape::replay() {
  const Plan plan = this->plan();
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) record.before("capstan::recompute", -1);
  check_externals(plan);
  fetch_boundary();

  std::vector<at::Tensor> values(memory_of_.size());
  std::vector<std::vector<std::int32_t>> dies(entries_.size());  // values after their last use
  for (std::size_t value = 0; value < values.size(); ++value) {
    const std::int32_t last = plan.last_use[value];
    if (last >= 0) dies[static_cast<std::size_t>(last)].push_back(static_cast<std::int32_t>(value));
  }
  const AutocastAsThen autocast(autocast_);
  GeneratorsAsNow generators;
  std::optional<InterceptorScope> scope;
  if (inside_ != nullptr) scope.emplace(*inside_);
  Collector collector;
  const SavedTensorScope saved(&collector);

  auto fill = fills_.begin();
  for (; fill != fills_.end() && fill->after < 0; ++fill) this->fill(*fill, tensor_of(fill->operand, values));
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto begin = fill;
    while (fill != fills_.end() && fill->after == static_cast<std::int32_t>(i)) ++fill;
    if (plan.runs[i]) {
      const Entry& entry = entries_[i];
      collector.begin();
      for (auto one = begin; one != fill; ++one) {
        if (one->saved >= 0) collector.want(one->saved);
      }
      if (entry.generator_state.defined()) generators.rewind(entry.generator, entry.generator_state);
      run_entry(entry, values);
      collector.end();
    }
    for (auto one = begin; one != fill; ++one) {
      if (one->slot.expired()) continue;
      this->fill(*one, one->saved >= 0 ? collector.taken(one->saved) : tensor_of(one->operand, values));
    }
    for (const std::int32_t value : dies[i]) values[static_cast<std::size_t>(value)].reset();
  }
  if (!closed_) return;
  entries_.clear();
  externals_.clear();
  fills_.clear();
}

}  // namespace capstan
