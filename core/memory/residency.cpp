#include "core/memory/residency.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/host_words.hpp"
#include "core/log.hpp"
#include "core/memory/operands.hpp"
#include "core/memory/remote_storage.hpp"

namespace capstan {
namespace {

enum class Presence { kHere, kRemote, kComing };

constexpr std::size_t kKeptBytes = 32 << 20;  // a few large layers

bool is_row_major_whole(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

/// Whether the tensors cover their storage, each element once.
bool covers(const std::vector<at::Tensor>& tensors) {
  const auto& storage = tensors.front().storage();
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / tensors.front().element_size());
  if (tensors.size() == 1 && is_row_major_whole(tensors.front())) return true;
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  if (numel != elements) return false;
  const at::Tensor seen = host_zeros({elements}, at::kBool);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != tensors.front().scalar_type()) return false;
    seen.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).fill_(true);
  }
  return seen.all().item<bool>();
}

/// The same elements, without autograd and with a version counter of its own: filling it is no change of the tensor,
/// which would make autograd take a parameter that is a view for a result of its base.
at::Tensor alias_of(const at::Tensor& tensor) {
  at::Tensor alias = tensor.detach();
  alias.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return alias;
}

/// Operators that write what autograd knows of a tensor, not its elements.
bool writes_no_elements(const std::string& name) {
  return name == "aten::requires_grad_" || name == "aten::detach_" || name == "aten::retain_grad";
}

}  // namespace

/// Parameters that share a storage come and go together.
struct ParameterResidency::Unit {
  c10::Storage storage;
  std::vector<std::size_t> parameters;
  std::vector<at::Tensor> values;  // one alias a parameter, without autograd
  std::string names;
  std::string sentence;  // for who asks for the memory while it is away
  std::int64_t numel = 0;
  bool direct = false;  // one parameter, in row-major order
  Presence presence = Presence::kHere;
  int pins = 0;   // by operators and by hold()
  int holds = 0;  // by hold() alone
  ParameterSource::Ticket ticket = 0;
  at::DataPtr memory;                // kComing
  std::vector<at::Tensor> arriving;  // kComing, when not direct

  void forget_room() {
    memory.clear();
    arriving.clear();
  }
};

/// "p0, p1", or the first and the last of many.
std::string ParameterResidency::names_of(const std::vector<Unit*>& units) {
  if (units.size() > 3) {
    return units.front()->names + " to " + units.back()->names + " (" + std::to_string(units.size()) + ")";
  }
  std::string names;
  for (const Unit* unit : units) names += (names.empty() ? "" : ", ") + unit->names;
  return names;
}

ParameterResidency::ParameterResidency(const std::vector<Parameter>& parameters, ParameterSource& source,
                                       ResidencyLimits limits)
    : source_(source), pages_(kKeptBytes), unit_of_(parameters.size(), -1) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, std::vector<std::size_t>> sharers;
  std::vector<const c10::StorageImpl*> order;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].tensor.numel() == 0) continue;
    const auto* storage = parameters[i].tensor.storage().unsafeGetStorageImpl();
    auto& list = sharers[storage];
    if (list.empty()) order.push_back(storage);
    list.push_back(i);
  }
  std::vector<std::int64_t> numels;
  for (const c10::StorageImpl* storage : order) {
    auto unit = std::make_unique<Unit>();
    bool stays = false;
    for (const std::size_t i : sharers[storage]) {
      unit->parameters.push_back(i);
      unit->values.push_back(alias_of(parameters[i].tensor));
      unit->names += (unit->names.empty() ? "" : ", ") + parameters[i].name;
      unit->numel += parameters[i].tensor.numel();
      stays |= parameters[i].stays;
    }
    if (stays || !covers(unit->values)) continue;
    unit->storage = unit->values.front().storage();
    unit->direct = unit->values.size() == 1 && is_row_major_whole(unit->values.front());
    unit->sentence = "the values of parameter '" + unit->names +
                     "' are not here: ZeRO stage 3 brings them for LibTorch's operators in forward and backward. Code "
                     "that reads their memory otherwise needs them held: " +
                     host_words().gather + ".";
    for (const std::size_t i : unit->parameters) unit_of_[i] = static_cast<int>(units_.size());
    unit_at_.emplace(storage, units_.size());
    live_ += unit->numel;
    numels.push_back(unit->numel);
    units_.push_back(std::move(unit));
  }
  traces_.assign(2, UseTrace(numels, limits));
}

ParameterResidency::~ParameterResidency() {
  // The model outlives the engine; its tensors then say that they are away, as long as nobody brings them.
  for (auto& unit : units_) {
    if (unit->presence != Presence::kComing) continue;
    comes(unit->ticket);  // the source writes to memory that goes with the unit
    unit->presence = Presence::kRemote;
  }
}

std::vector<ParameterResidency::Pinned>& ParameterResidency::pinned_here() {
  static thread_local std::vector<Pinned> stack;
  return stack;
}

const ParameterResidency::Operator& ParameterResidency::facts(const c10::OperatorHandle& op) {
  const auto [found, is_new] = operators_.try_emplace(&op.schema());
  Operator& known = found->second;
  if (!is_new) return known;
  const bool metadata = writes_no_elements(op.schema().name());
  bool aliases = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    known.writes.push_back(alias != nullptr && alias->isWrite() && !metadata);
    aliases |= alias != nullptr && !alias->isWrite();
  }
  // A composite that may return a view, as reshape, copies where it cannot: what it calls tells.
  known.looks_inside = aliases && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  known.view = metadata || (aliases && !known.looks_inside);
  return known;
}

bool ParameterResidency::looks_inside(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex_);
  return facts(op).looks_inside;
}

void ParameterResidency::use(const at::Tensor& operand, bool written, const c10::OperatorHandle& op,
                             std::vector<std::size_t>& units) {
  if (!operand.defined() || !operand.has_storage()) return;
  const auto found = unit_at_.find(operand.storage().unsafeGetStorageImpl());
  if (found == unit_at_.end()) return;
  Unit& unit = *units_[found->second];
  if (written && unit.holds == 0) {
    throw RuntimeFault("operator " + op.schema().name() + " writes parameter '" + unit.names +
                       "', whose values ZeRO stage 3 brings and sends away: the change would be lost. Write it while "
                       "it is held: " +
                       host_words().gather + ".");
  }
  if (std::find(units.begin(), units.end(), found->second) == units.end()) units.push_back(found->second);
}

std::vector<ParameterResidency::Use> ParameterResidency::pin_operands(const c10::OperatorHandle& op,
                                                                      OperatorStack& stack,
                                                                      std::size_t argument_count) {
  const std::lock_guard lock(mutex_);
  const Operator& known = facts(op);
  if (known.view) return {};
  std::vector<std::size_t> units;
  for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t argument) {
    use(operand, known.writes[argument], op, units);
  });
  std::vector<Use> uses;
  for (const std::size_t unit : units) {
    uses.push_back({unit, inside_ ? trace().use(unit) : 0});
    if (inside_) send_off_left_out();
  }
  if (uses.empty()) return uses;
  fetch(units);
  if (inside_) {
    fetch(trace().ahead(live_, [this](std::size_t unit) { return units_[unit]->presence == Presence::kRemote; }));
  }
  pin(units);
  return uses;
}

/// What was fetched ahead in vain, and may leave. Waiting for it costs nothing that later fetches would not wait for.
void ParameterResidency::send_off_left_out() {
  const auto [first, end] = trace().left_out();
  for (std::size_t position = first; position < end; ++position) {
    Unit& unit = *units_[trace().unit_at(position)];
    if (trace().is_kept(position)) continue;
    if (unit.presence == Presence::kComing) arrive(unit);
    leave(unit);
  }
}

void ParameterResidency::before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  std::vector<Pinned>& pinned = pinned_here();
  pinned.push_back({this, {}});  // first, as it may throw: pins without an entry here would stay for ever
  try {
    pinned.back().uses = pin_operands(op, stack, argument_count);
  } catch (...) {
    pinned.pop_back();
    throw;
  }
}

/// Waits for those that are coming. All of them are pinned, or none.
void ParameterResidency::pin(const std::vector<std::size_t>& units) {
  std::size_t done = 0;
  try {
    for (; done < units.size(); ++done) {
      Unit& unit = *units_[units[done]];
      if (unit.presence == Presence::kComing) arrive(unit);
      ++unit.pins;
    }
  } catch (...) {
    while (done-- > 0) {
      Unit& unit = *units_[units[done]];
      if (--unit.pins == 0) leave(unit);
    }
    throw;
  }
}

void ParameterResidency::after(const c10::OperatorHandle&) noexcept {
  Pinned pinned = std::move(pinned_here().back());
  pinned_here().pop_back();
  if (pinned.uses.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const Use& use : pinned.uses) {
    Unit& unit = *units_[use.unit];
    if (--unit.pins > 0) continue;
    if (!inside_ || !trace().is_kept(use.position)) leave(unit);
  }
}

/// The device has a pool of its own, from which the calling thread's current stream takes memory: whatever fills it is
/// ordered behind the stream.
at::DataPtr ParameterResidency::allocate(const c10::Storage& storage) {
  if (storage.device().is_cpu()) return pages_.allocate(storage.nbytes());
  const c10::DeviceGuard guard(storage.device());
  return c10::GetAllocator(storage.device_type())->allocate(storage.nbytes());
}

/// Memory for a unit's values, and the requests that fill it.
std::vector<ParameterSource::Request> ParameterResidency::make_room(Unit& unit) {
  unit.memory = allocate(unit.storage);
  if (unit.direct) {
    const at::Tensor& like = unit.values.front();
    // from_blob() owns nothing: the unit keeps the memory until the values arrive.
    return {
        {unit.parameters.front(), at::from_blob(unit.memory.get(), {unit.numel}, like.options().requires_grad(false))}};
  }
  std::vector<ParameterSource::Request> requests;
  for (std::size_t k = 0; k < unit.parameters.size(); ++k) {
    unit.arriving.push_back(at::empty({unit.values[k].numel()}, unit.values[k].options()));
    requests.push_back({unit.parameters[k], unit.arriving.back()});
  }
  return requests;
}

/// One call for all of them that are away.
void ParameterResidency::fetch(const std::vector<std::size_t>& units) {
  const at::NoGradGuard no_grad;
  std::vector<Unit*> coming;
  for (const std::size_t index : units) {
    Unit& unit = *units_[index];
    if (unit.presence == Presence::kRemote && std::find(coming.begin(), coming.end(), &unit) == coming.end()) {
      coming.push_back(&unit);
    }
  }
  if (coming.empty()) return;
  ParameterSource::Ticket ticket = 0;
  try {
    std::vector<ParameterSource::Request> requests;
    for (Unit* unit : coming) {
      for (auto& request : make_room(*unit)) requests.push_back(std::move(request));
    }
    ticket = source_.fetch(names_of(coming), std::move(requests));
  } catch (...) {
    for (Unit* unit : coming) unit->forget_room();
    throw;
  }
  for (Unit* unit : coming) {
    unit->ticket = ticket;
    unit->presence = Presence::kComing;
    live_ += unit->numel;
  }
}

void ParameterResidency::arrive(Unit& unit) {
  const at::NoGradGuard no_grad;
  try {
    source_.wait(unit.ticket);
  } catch (...) {
    abandon(unit.ticket);
    throw;
  }
  restore_memory(*unit.storage.unsafeGetStorageImpl(), std::move(unit.memory));
  unit.presence = Presence::kHere;
  if (unit.direct) return;
  try {
    for (std::size_t k = 0; k < unit.values.size(); ++k) {
      unit.values[k].copy_(unit.arriving[k].view(unit.values[k].sizes()));
    }
  } catch (...) {
    unit.forget_room();
    leave(unit);
    throw;
  }
  unit.arriving.clear();
}

bool ParameterResidency::comes(ParameterSource::Ticket ticket) {
  try {
    source_.wait(ticket);
    return true;
  } catch (const std::exception&) {
    return false;  // for the reason that the caller is about to throw
  }
}

/// A wait has failed: what was asked for with it will not come, nor what the source dropped with it. Later fetches may
/// be under way, into memory that is theirs.
void ParameterResidency::abandon(ParameterSource::Ticket failed) {
  for (const auto& unit : units_) {
    if (unit->presence != Presence::kComing || unit->ticket < failed) continue;
    if (unit->ticket > failed && comes(unit->ticket)) continue;
    unit->forget_room();
    unit->presence = Presence::kRemote;
    live_ -= unit->numel;
  }
}

void ParameterResidency::leave(Unit& unit) {
  if (unit.presence != Presence::kHere || unit.pins > 0) return;
  drop_memory(*unit.storage.unsafeGetStorageImpl(), unit.sentence);
  unit.presence = Presence::kRemote;
  live_ -= unit.numel;
}

void ParameterResidency::begin_pass(Pass pass) {
  if (pass != pass_) drop();
  pass_ = pass;
  inside_ = true;
  trace().begin();
}

void ParameterResidency::settle() {
  const std::lock_guard lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->presence == Presence::kComing) arrive(*unit);
  }
}

void ParameterResidency::end_pass() {
  settle();
  inside_ = false;
  trace().end();
  if (!trace().strayed() || warned_) return;
  warned_ = true;
  log::warning(
      "the order in which operators use parameters has changed between micro-batches. From where it changes on, "
      "parameters are fetched one by one, as they are used; the next pass of that order is fetched ahead again. Said "
      "once.");
}

void ParameterResidency::drop() {
  settle();
  for (const auto& unit : units_) leave(*unit);
}

void ParameterResidency::hold(const std::vector<std::size_t>& parameters) {
  std::vector<std::size_t> units;
  for (const std::size_t i : parameters) {
    if (unit_of_[i] >= 0) units.push_back(static_cast<std::size_t>(unit_of_[i]));
  }
  const std::lock_guard lock(mutex_);
  fetch(units);
  pin(units);
  for (const std::size_t unit : units) ++units_[unit]->holds;
}

void ParameterResidency::let_go(const std::vector<std::size_t>& parameters) {
  const std::lock_guard lock(mutex_);
  for (const std::size_t i : parameters) {
    if (unit_of_[i] < 0) continue;
    Unit& unit = *units_[static_cast<std::size_t>(unit_of_[i])];
    --unit.holds;
    if (--unit.pins == 0) leave(unit);
  }
}

}  // namespace capstan
