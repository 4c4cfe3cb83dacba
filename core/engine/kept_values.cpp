#include "core/engine/kept_values.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/comm/communicator.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/keep/checkpoint_lookup.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {
namespace {

/// Values that are given, as one dimension of float32.
at::Tensor flat_values(const KeptValues::What& what, const at::Tensor& values, std::int64_t numel) {
  if (values.numel() == numel) return values.detach().to(at::kFloat).contiguous().view({-1});
  throw RuntimeFault(what.name + " of '" + what.parameter + "': takes " + std::to_string(numel) + " elements, got " +
                     std::to_string(values.numel()) + ".");
}

[[noreturn]] void refuse_state(const KeptValues::What& what, const std::string& has) {
  throw RuntimeFault("'" + what.name + "' of '" + what.parameter + "': the optimizer has no such state; it has " +
                     (has.empty() ? "none" : has) + ".");
}

[[noreturn]] void refuse_blocks(const KeptValues::What& what) {
  throw RuntimeFault(
      "'" + what.name + "' of '" + what.parameter +
      "': has one value for a block of elements, which ranks keep in parts. A checkpoint holds it whole.");
}

}  // namespace

KeptValues::KeptValues(Engine& engine) : engine_(engine), state_(*engine.state_) {}

bool KeptValues::trains(const std::string& parameter) const {
  const auto& entries = state_.store.entries();
  return std::any_of(entries.begin(), entries.end(),
                     [&](const ParameterEntry& entry) { return entry.name == parameter; });
}

std::size_t KeptValues::index_of(const std::string& parameter) const {
  const auto& entries = state_.store.entries();
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const ParameterEntry& entry) { return entry.name == parameter; });
  if (found == entries.end()) throw RuntimeFault("parameter '" + parameter + "' is not trained by this engine.");
  return static_cast<std::size_t>(found - entries.begin());
}

void KeptValues::refuse_within_step(const What& what) const {
  if (engine_.at_accumulation_boundary()) return;
  throw RuntimeFault("gradient of '" + what.parameter +
                     "': gradients are averaged over ranks and micro-batches with the last backward of a step, and "
                     "dropped by step(). Ask between the two, where is_gradient_accumulation_boundary() is true.");
}

/// The mean gradient of what this rank updates, as the engine keeps it: of any layout and type; undefined: none.
at::Tensor KeptValues::gradient_of(std::size_t index) const {
  ParameterStore& store = state_.store;
  StepGradients& gradients = store.gradients();
  if (gradients.local()) {
    throw RuntimeFault("gradient of '" + store.entries()[index].name +
                       "': the optimizer averages gradients by itself, so no rank has the mean before the update.");
  }
  if (gradients.stored(index)) {
    throw RuntimeFault("gradient of '" + store.entries()[index].name +
                       "': it went to the store that zero_optimization.offload_optimizer names, and is read back by "
                       "the update alone. Leave the section out to read gradients.");
  }
  return gradients.kept(index);
}

/// Whether some rank has had a gradient of the parameter in this step.
bool KeptValues::gradient_is_there(std::size_t index) const {
  const bool here = state_.store.gradients().is_here(index);
  Communicator& communicator = *state_.communicator;
  if (communicator.size() == 1) return here;
  const auto of_ranks = communicator.all_gather_text("whether ranks have a gradient", here ? "1" : "");
  return std::any_of(of_ranks.begin(), of_ranks.end(), [](const std::string& text) { return !text.empty(); });
}

void KeptValues::visit_states(std::size_t index, bool changes,
                              const std::function<void(const StateSpec&, const at::Tensor&, const Piece&)>& use) const {
  ParameterStore& store = state_.store;
  for (const SubGroup& sub_group : store.sub_groups()) {
    const auto pieces = store.pieces(sub_group);
    if (std::none_of(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.entry == index; })) continue;
    store.acquire(sub_group);
    for (Piece& piece : store.pieces(sub_group)) {
      if (piece.entry != index) continue;
      store.for_each_state(piece, [&](const StateSpec& spec, const at::Tensor& values) { use(spec, values, piece); });
    }
    store.release(sub_group, changes);
  }
}

std::vector<std::string> KeptValues::states(const std::string& parameter) const {
  state_.store.settle();
  std::set<std::string> names;
  visit_states(index_of(parameter), /*changes=*/false, [&](const StateSpec& spec, const at::Tensor&, const Piece&) {
    const bool is_of_parts = spec.per_rank || spec.reset_on_reshard || spec.scratch;
    if (spec.like == StateSpec::Like::kParameter && !is_of_parts) names.insert(spec.name);
  });
  return {names.begin(), names.end()};
}

void KeptValues::visit(const What& what, bool changes, const std::function<void(at::Tensor, std::int64_t)>& use) const {
  ParameterStore& store = state_.store;
  const std::size_t index = index_of(what.parameter);
  if (what.is_master()) {
    store.visit_master(index, changes,
                       [&](std::size_t, const at::Tensor& master, std::int64_t offset) { use(master, offset); });
    return;
  }
  bool found = false;
  std::string has;
  visit_states(index, changes, [&](const StateSpec& spec, const at::Tensor& values, const Piece& piece) {
    has += (has.empty() ? "'" : ", '") + spec.name + "'";
    if (spec.name != what.name) return;
    found = true;
    use(values.view({-1}), is_cut(spec) ? spec.values_for(piece.offset, store.entries()[index].shape) : 0);
  });
  if (!found) refuse_state(what, has);
}

at::Tensor KeptValues::part(const What& what) const {
  const at::NoGradGuard no_grad;
  state_.store.settle();
  if (what.is_gradient()) {
    refuse_within_step(what);
    at::Tensor gradient = gradient_of(index_of(what.parameter));
    if (!gradient.defined()) return {};
    if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
    return gradient.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
        .contiguous()
        .view({-1})
        .div_(state_.scaler.scale());
  }
  std::vector<std::pair<std::int64_t, at::Tensor>> runs;
  std::int64_t numel = 0;
  visit(what, /*changes=*/false, [&](const at::Tensor& values, std::int64_t offset) {
    runs.emplace_back(offset, values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    numel = std::max(numel, offset + values.numel());
  });
  if (runs.size() == 1) return runs.front().second;
  at::Tensor all = at::empty({numel}, runs.empty() ? at::TensorOptions(at::kFloat) : runs.front().second.options());
  for (const auto& [offset, values] : runs) all.narrow(0, offset, values.numel()).copy_(values);
  return all;
}

at::Tensor KeptValues::joined(const std::string& parameter, const at::Tensor& part) const {
  const at::NoGradGuard no_grad;
  ParameterStore& store = state_.store;
  const std::size_t index = index_of(parameter);
  Sharding* sharding = store.sharding();
  const bool cut = sharding != nullptr && sharding->partitioned();
  const What what{parameter, "part"};
  const at::Tensor given = flat_values(what, part, store.updated(index).numel);
  const at::Tensor whole = cut ? sharding->gather_master("values that ranks keep", index, given) : given;
  return whole.view(store.entries()[index].shape);
}

/// What the optimizer's manifest says of a state; null for masters and gradients, and where it has none of that name.
const StateSpec* KeptValues::state_of(const What& what) const {
  if (what.is_gradient() || what.is_master()) return nullptr;
  const std::vector<StateSpec>& states = state_.store.states();
  const auto found =
      std::find_if(states.begin(), states.end(), [&](const StateSpec& one) { return one.name == what.name; });
  return found == states.end() ? nullptr : &*found;
}

/// A state that is not cut, of the first rank that has elements of the parameter: the others do not update theirs.
at::Tensor KeptValues::from_updater(std::size_t index, const at::Tensor& values) const {
  Sharding* sharding = state_.store.sharding();
  if (sharding == nullptr || !sharding->partitioned()) return values;
  int root = 0;
  while (root + 1 < sharding->communicator().size() && sharding->updated(index, root).numel == 0) ++root;
  sharding->communicator().broadcast("a state that ranks keep", {values}, root);
  return values;
}

at::Tensor KeptValues::whole(const What& what) const {
  const at::NoGradGuard no_grad;
  ParameterStore& store = state_.store;
  const std::size_t index = index_of(what.parameter);
  if (what.is_gradient()) {
    refuse_within_step(what);
    store.settle();
    if (!gradient_is_there(index)) return {};
  }
  const at::Tensor mine = part(what);
  const StateSpec* spec = state_of(what);
  if (spec == nullptr || spec->like == StateSpec::Like::kParameter) return joined(what.parameter, mine);
  if (is_cut(*spec)) refuse_blocks(what);
  return from_updater(index, mine).view(state_shape(*spec, store.entries()[index], mine));
}

void KeptValues::set_part(const What& what, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  state_.store.settle();
  if (what.is_gradient()) {
    refuse_within_step(what);
    const std::size_t index = index_of(what.parameter);
    const at::Tensor gradient = gradient_of(index);
    if (!gradient.defined()) {
      throw RuntimeFault("gradient of '" + what.parameter + "': this step has none that could get other values.");
    }
    const at::Tensor given = flat_values(what, values, gradient.numel());
    state_.store.gradients().set(index, given.mul(state_.scaler.scale()));
    return;
  }
  const at::Tensor whole_part = part(what);
  const at::Tensor given = flat_values(what, values, whole_part.numel());
  visit(what, /*changes=*/true,
        [&](at::Tensor to, std::int64_t offset) { to.copy_(given.narrow(0, offset, to.numel())); });
}

void KeptValues::set_whole(const What& what, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  ParameterStore& store = state_.store;
  const std::size_t index = index_of(what.parameter);
  if (const StateSpec* spec = state_of(what); spec != nullptr && spec->like != StateSpec::Like::kParameter) {
    if (is_cut(*spec)) refuse_blocks(what);
    return set_part(what, values);  // each rank has all of it
  }
  const at::Tensor given = flat_values(what, values, store.entries()[index].parameter.numel());
  const Range mine = store.updated(index);
  set_part(what, given.narrow(0, mine.offset, mine.numel));
  if (!what.is_master()) return;
  state_.keep.snapshots().forget();
  store.refresh_all();
}

}  // namespace capstan
