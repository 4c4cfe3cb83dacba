// How a parameter store shows in fp32 what it keeps in 16 bits, and rounds what an update has changed.

#include <algorithm>

#include "core/host_tensor.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/precision/stochastic_rounding.hpp"

namespace capstan {

/// Whether some master or state is shown in fp32 and kept in 16 bits.
bool ParameterStore::widens_something() const {
  const bool masters =
      std::any_of(plans_.begin(), plans_.end(), [](const EntryPlan& plan) { return plan.master != at::kFloat; });
  return masters || (options_.widens && std::any_of(options_.states.begin(), options_.states.end(), options_.widens));
}

/// Bytes in which an element of the entry shows what it keeps in 16 bits, at most: perhaps it lacks a state.
std::uint64_t ParameterStore::wide_bytes(const EntryPlan& plan) const {
  std::uint64_t values = plan.master != at::kFloat ? 1 : 0;
  if (options_.widens) {
    values +=
        static_cast<std::uint64_t>(std::count_if(options_.states.begin(), options_.states.end(), options_.widens));
  }
  return values * sizeof(float);
}

/// Gives masters and states that are kept in 16 bits their places in fp32, the same ones in each sub-group.
void ParameterStore::build_wide() {
  is_kept_.resize(pieces_.size());
  if (!widens_something()) return;
  std::vector<std::pair<at::Tensor*, at::Tensor*>> wide;  // of a sub-group: what is kept, and what shows it
  std::vector<std::vector<std::pair<at::Tensor*, at::Tensor*>>> of_groups;
  std::int64_t most = 0;
  for (const SubGroup& sub_group : sub_groups_) {
    std::int64_t elements = 0;
    const auto add = [&](at::Tensor& shown, at::Tensor& kept) {
      kept = shown.view({-1});
      wide.emplace_back(&kept, &shown);
      elements += shown.numel();
    };
    for (Piece& piece : pieces(sub_group)) {
      if (plans_[piece.entry].master != at::kFloat) add(piece.master, piece.kept_master);
      piece.kept_state.resize(piece.state.size());
      std::size_t index = 0;
      for (const StateSpec& spec : options_.states) {
        if (spec.extent == StateSpec::Extent::kModel) continue;
        const std::size_t k = index++;
        if (piece.state[k].defined() && options_.widens && options_.widens(spec)) {
          add(piece.state[k], piece.kept_state[k]);
        }
      }
    }
    most = std::max(most, elements);
    of_groups.push_back(std::exchange(wide, {}));
  }
  wide_ = allocate_state({most}, at::kFloat);
  for (const auto& group : of_groups) {
    std::int64_t begin = 0;
    for (const auto& [kept, shown] : group) {
      *shown = wide_.narrow(0, begin, kept->numel()).view(shown->sizes());
      begin += kept->numel();
    }
  }
}

/// Makes the pieces of a sub-group show what they keep.
void ParameterStore::widen(const SubGroup& sub_group) {
  for (Piece& piece : pieces(sub_group)) {
    if (piece.kept_master.defined()) accelerator_.copy(piece.master, piece.kept_master.view(piece.master.sizes()));
    for (std::size_t k = 0; k < piece.kept_state.size(); ++k) {
      if (piece.kept_state[k].defined()) accelerator_.copy(piece.state[k], piece.kept_state[k]);
    }
  }
}

/// Makes a piece keep what it shows, unless it does. `update`: the number of the update that has changed it; none: it
/// got other values.
void ParameterStore::keep(std::size_t p, std::optional<std::int64_t> update) {
  if (std::exchange(is_kept_[p], 1) != 0) return;
  Piece& piece = pieces_[p];
  if (piece.kept_master.defined() && compute_written_[p] == 0) {
    round(piece.master.view({-1}), piece.kept_master, "master", piece, update);
  }
  std::size_t index = 0;
  for (const StateSpec& spec : options_.states) {
    if (spec.extent == StateSpec::Extent::kModel) continue;
    const std::size_t k = index++;
    if (k >= piece.kept_state.size() || !piece.kept_state[k].defined()) continue;
    round(piece.state[k], piece.kept_state[k], spec.name, piece, update);
  }
}

void ParameterStore::round(const at::Tensor& from, at::Tensor& to, std::string_view tensor, const Piece& piece,
                           std::optional<std::int64_t> update) const {
  if (!update || !options_.rounding_seed) return accelerator_.copy(to, from);
  const std::int64_t first = entries_[piece.entry].offset + piece.offset;
  round_stochastically(from, to, {*options_.rounding_seed, tensor, *update, piece.entry, first});
}

/// Brings a compute copy that is not the master of 16 bits itself up to date with it.
void ParameterStore::send_kept(Piece& piece) {
  ParameterEntry& entry = entries_[piece.entry];
  if (options_.updates_on_host && piece.on_device.defined()) {
    send_to_device(piece.on_device, piece.kept_master);
  } else if (!partitioned() && entry.separate) {
    send_to_device(entry.compute, piece.kept_master.view(entry.shape));
  }
}

}  // namespace capstan
