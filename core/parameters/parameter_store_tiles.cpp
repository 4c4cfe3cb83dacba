// How a parameter store's pieces come to be, and where their tensors are: in memory, or in tiles on stores.

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/host_tensor.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

/// States of the whole model have no place in an entry.
bool per_entry(const StateSpec& spec) { return spec.extent != StateSpec::Extent::kModel; }

/// Counters are read where the update is prepared, and each piece has its own: they are never on a store.
bool is_counter(const StateSpec& spec) { return spec.like == StateSpec::Like::kScalar; }

/// What is kept of a piece: its master, or a state.
const at::Tensor& kept_tensor(const Piece& piece, int tensor) {
  if (tensor == ParameterStore::kMaster) return piece.kept_master.defined() ? piece.kept_master : piece.master;
  const auto k = static_cast<std::size_t>(tensor);
  return k < piece.kept_state.size() && piece.kept_state[k].defined() ? piece.kept_state[k] : piece.state[k];
}

std::uint64_t bytes_per_element(const TileEntry& entry) {
  double bytes = static_cast<double>(entry.compute + entry.master_with_parameters + entry.master + entry.gradient);
  for (const TileEntry::State& state : entry.states) {
    if (!state.there) continue;
    const double elements =
        static_cast<double>(state.block > 0 ? state.block : std::max<std::int64_t>(entry.planned, 1));
    bytes += static_cast<double>(state.bytes) / elements;
  }
  return static_cast<std::uint64_t>(bytes + 0.999);
}

}  // namespace

void ParameterStore::plan_sub_groups(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups) {
  const OffloadOptions& offload = options_.offload;
  staging_ = std::make_unique<TileStaging>();
  const bool stores = offload.states || offload.parameters;
  if (!stores && !widens_something()) return plan_whole();
  std::vector<TileEntry> entries;
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].trained() || !at::isFloatingType(parameters[k].tensor.scalar_type())) continue;
    entries.push_back(tile_entry(plans_[entries.size()], parameters[k], groups[groups.group_of(k)]));
  }
  std::int64_t widest = 1, elements = 0, largest_whole = 0, group = 0, largest_group = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const TileEntry& entry = entries[i];
    widest = std::max(widest, static_cast<std::int64_t>(std::max(bytes_per_element(entry), wide_bytes(plans_[i]))));
    elements += entry.planned;
    group += entry.planned;
    largest_group = std::max(largest_group, group);
    if (group >= options_.sub_group_size) group = 0;
    if (!entry.may_be_cut) largest_whole = std::max(largest_whole, entry.planned);
  }
  const OffloadStaging limits =
      stores ? offload_staging(widest, largest_whole, options_.sub_group_size, elements,
                               staging_bound(offload.buffer_count, largest_group), offload.slots)
             : offload_staging(widest, largest_whole, options_.sub_group_size, elements, INT64_MAX, 1);
  std::uint64_t alignment = 64;
  for (const auto& store : {offload.states, offload.parameters}) {
    if (store) alignment = std::max(alignment, store->alignment());
  }
  const std::vector<PlannedTile> tiles = plan_tiles(entries, limits.tile_elements, Partition::kBlock, alignment);
  take_tiles(tiles);
  if (stores) add_staging(tiles, limits);
}

/// Without stores a piece is an entry.
void ParameterStore::plan_whole() {
  std::int64_t elements = 0;
  SubGroup current;
  // Ranks that measure together need the same sub-groups, whatever their parts are.
  const std::int64_t ranks = home_->ranks();
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    first_piece_.push_back(i);
    pieces_.push_back({.entry = i, .numel = plans_[i].part.numel});
    sub_group_of_.push_back(sub_groups_.size());
    elements += (plans_[i].whole + ranks - 1) / ranks;
    current.end = i + 1;
    if (elements >= options_.sub_group_size || i + 1 == plans_.size()) {
      sub_groups_.push_back(current);
      current = {i + 1, i + 1, sub_groups_.size()};
      elements = 0;
    }
  }
  first_piece_.push_back(pieces_.size());
}

TileEntry ParameterStore::tile_entry(EntryPlan& plan, const NamedTensor& named, const capstan_group& group) const {
  const std::vector<std::int64_t> shape = named.tensor.sizes().vec();
  plan.gradient_stored = plan.parameter_stored && options_.offload.states != nullptr;
  const std::int64_t ranks = home_->ranks();
  TileEntry entry;
  entry.numel = plan.part.numel;
  entry.planned = (named.tensor.numel() + ranks - 1) / ranks;
  entry.may_be_cut = options_.offload.may_cut && (partitioned() || named.tensor.is_contiguous());
  if (plan.copy_stored()) entry.compute = c10::elementSize(plan.dtype);
  if (plan.parameter_stored && !plan.separate) entry.master_with_parameters = c10::elementSize(plan.master);
  if (plan.master_stored) entry.master = c10::elementSize(plan.master);
  if (plan.gradient_stored) entry.gradient = c10::elementSize(options_.accumulation_dtype);
  for (const StateSpec& spec : options_.states) {
    if (!per_entry(spec)) continue;
    TileEntry::State& state = entry.states.emplace_back();
    state.there =
        options_.offload.states && !is_counter(spec) && capstan::has_state(spec, group, named.name, shape, named.role);
    state.bytes = c10::elementSize(options_.state_dtype(spec));
    if (spec.like == StateSpec::Like::kBlock) state.block = spec.block;
    if (!spec.is_factor()) continue;
    state.block = 0;
    state.bytes *= static_cast<std::uint64_t>(spec.values_for(plan.part.numel, shape));
  }
  return entry;
}

void ParameterStore::take_tiles(const std::vector<PlannedTile>& tiles) {
  for (const PlannedTile& tile : tiles) {
    const std::size_t first = pieces_.size();
    for (const TilePiece& place : tile.pieces) {
      if (place.entry == first_piece_.size()) first_piece_.push_back(pieces_.size());
      pieces_.push_back({.entry = place.entry, .offset = place.offset, .numel = place.numel});
      places_.push_back(place);
      sub_group_of_.push_back(sub_groups_.size());
    }
    sub_groups_.push_back({first, pieces_.size(), sub_groups_.size()});
  }
  first_piece_.push_back(pieces_.size());
}

void ParameterStore::add_staging(const std::vector<PlannedTile>& planned, const OffloadStaging& limits) {
  const OffloadOptions& offload = options_.offload;
  const auto in_memory =
      static_cast<std::size_t>(sub_groups_in_memory(offload.ratio, static_cast<std::int64_t>(planned.size())));
  std::vector<TileStaging::Tile> tiles;
  std::uint64_t of_parameters = 0, of_states = 0;
  for (const PlannedTile& one : planned) {
    TileStaging::Tile& tile = tiles.emplace_back();
    // 16-bit copies are made anew from the masters.
    tile.parameters = {one.parameter_bytes, one.parameter_bytes, one.copies_end, one.parameter_bytes};
    tile.states = {one.state_bytes, one.masters_end, 0, one.gradients_begin};
    tile.states_resident = offload.states && tiles.size() <= in_memory;
    of_parameters += one.parameter_bytes;
    if (!tile.states_resident) of_states += one.state_bytes;
  }
  if (offload.parameters == offload.states) {
    offload.states->require_room(of_parameters + of_states, "parameters and optimizer states");
  } else {
    if (offload.parameters) offload.parameters->require_room(of_parameters, "parameters");
    if (offload.states) offload.states->require_room(of_states, "optimizer states");
  }
  staging_ = std::make_unique<TileStaging>(
      std::move(tiles),
      TileStaging::Options{offload.parameters.get(), offload.states.get(), static_cast<std::size_t>(limits.slots),
                           offload.read_ahead, offload.write_behind});
}

/// Where the parts of parameters, and their gradients, are on stores.
StoredValues ParameterStore::stored_values() {
  if (!options_.offload.parameters) return {};
  StoredValues kept;
  OffloadDevice& store = *options_.offload.parameters;
  std::vector<std::vector<StoredExtent>> parts(plans_.size()), gradients(plans_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    const EntryPlan& plan = plans_[piece.entry];
    const std::size_t tile = sub_group_of_[p];
    if (!plan.parameter_stored) continue;
    const std::uint64_t place = plan.copy_stored() ? places_[p].compute : places_[p].master;
    parts[piece.entry].push_back({staging_->parameters_buffer(tile), place, nullptr, piece.offset, piece.numel});
    std::byte* const here =
        staging_->states_resident(tile) ? staging_->states_memory(tile) + places_[p].gradient : nullptr;
    gradients[piece.entry].push_back(
        {staging_->states_buffer(tile), places_[p].gradient, here, piece.offset, piece.numel});
  }
  for (std::size_t k = 0; k < frozen_.size(); ++k) {
    auto& extents = parts.emplace_back();
    if (!frozen_stored_[k]) continue;
    const std::int64_t numel = sharding_->frozen_part(k).numel;
    const std::uint64_t bytes = static_cast<std::uint64_t>(numel) * c10::elementSize(frozen_[k].tensor.scalar_type());
    if (numel > 0)
      extents.push_back({store.add_buffer(bytes, "parameter '" + frozen_[k].name + "'"), 0, nullptr, 0, numel});
  }
  stored_parts_ = std::make_unique<StoredParts>(store, std::move(parts));
  for (const EntryPlan& plan : plans_) kept.trained.push_back(plan.parameter_stored);
  kept.parts = stored_parts_.get();
  kept.frozen = frozen_stored_;
  if (options_.offload.states) {
    stored_gradients_ =
        std::make_unique<StoredGradients>(*options_.offload.states, options_.accumulation_dtype, std::move(gradients));
    kept.gradients = stored_gradients_.get();
  }
  return kept;
}

at::Tensor ParameterStore::staged(std::byte* memory, std::int64_t elements, at::ScalarType dtype) const {
  return at::from_blob(memory, {elements}, dtype);
}

void ParameterStore::build_pieces(const ParameterGroups& groups) {
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    build_tensors(p);
    build_states(p, groups);
  }
}

void ParameterStore::build_tensors(std::size_t p) {
  Piece& piece = pieces_[p];
  ParameterEntry& entry = entries_[piece.entry];
  const EntryPlan& plan = plans_[piece.entry];
  const bool whole = piece.numel == plan.part.numel;
  const std::size_t tile = sub_group_of_[p];
  const auto part_of = [&](const at::Tensor& tensor) {
    return whole ? tensor.view({-1}) : tensor.view({-1}).narrow(0, piece.offset, piece.numel);
  };
  if (entry.master.is_meta()) {
    std::byte* memory = plan.master_stored ? staging_->states_memory(tile) : staging_->parameters_memory(tile);
    piece.master = staged(memory + places_[p].master, piece.numel, plan.master);
    if (whole) piece.master = piece.master.view(entry.master.sizes());
  } else {
    piece.master = whole ? entry.master : part_of(entry.master);
  }
  if (plan.copy_stored()) {
    piece.compute = staged(staging_->parameters_memory(tile) + places_[p].compute, piece.numel, plan.dtype);
  } else if (options_.updates_on_host) {
    const at::Tensor& there = partitioned() ? entry.compute_part : entry.compute;
    if (there.is_contiguous()) piece.on_device = part_of(there);
    if (piece.on_device.defined() && plan.dtype != plan.master) piece.compute = host_empty({piece.numel}, plan.dtype);
  } else if (partitioned()) {
    if (entry.compute_part.defined()) piece.compute = part_of(entry.compute_part);
  } else if (entry.separate && entry.compute.is_contiguous() && plan.dtype != at::kFloat) {
    piece.compute = part_of(entry.compute);
  }
  if (plan.gradient_stored) {
    piece.gradient =
        staged(staging_->states_memory(tile) + places_[p].gradient, piece.numel, options_.accumulation_dtype);
  }
}

void ParameterStore::build_states(std::size_t p, const ParameterGroups& groups) {
  Piece& piece = pieces_[p];
  const ParameterEntry& entry = entries_[piece.entry];
  for (const StateSpec& spec : options_.states) {
    if (!per_entry(spec)) continue;
    const std::size_t index = piece.state.size();
    at::Tensor& state = piece.state.emplace_back();
    if (!has_state(spec, entry, groups)) continue;
    const std::int64_t values = spec.values_for(piece.numel, entry.shape);
    const at::ScalarType dtype = options_.state_dtype(spec);
    if (is_counter(spec)) {
      state = host_empty({values}, dtype).fill_(spec.init);
    } else if (options_.offload.states) {
      state = staged(staging_->states_memory(sub_group_of_[p]) + places_[p].states[index], values, dtype);
    } else {
      state = allocate_state({values}, dtype).fill_(spec.init);
    }
  }
}

void ParameterStore::fill_states(const SubGroup& sub_group) {
  for (Piece& piece : pieces(sub_group)) {
    for_each_state(piece, [&](const StateSpec& spec, at::Tensor& values) {
      if (!is_counter(spec)) values.fill_(spec.init);
    });
  }
}

void ParameterStore::acquire(const SubGroup& sub_group, TileStaging::Show show) {
  const bool updated = staging_->acquire(sub_group.index, show);
  widen(sub_group);
  if (options_.offload.states && (!updated || show == TileStaging::Show::kNothing)) fill_states(sub_group);
}

void ParameterStore::release(const SubGroup& sub_group, bool changed) {
  // A tile is written whole, with the copies of parameters that have no gradient.
  for (std::size_t p = sub_group.begin; changed && p < sub_group.end; ++p) {
    keep(p, std::nullopt);
    const Piece& piece = pieces_[p];
    if (!plans_[piece.entry].copy_stored()) continue;
    const bool written = std::exchange(compute_written_[p], 0) != 0;
    if (piece.kept_master.defined()) {
      accelerator_.copy(pieces_[p].compute, piece.kept_master);
    } else if (!written) {
      accelerator_.copy(pieces_[p].compute, piece.master);
    }
  }
  for (std::size_t p = sub_group.begin; p < sub_group.end; ++p) {
    is_kept_[p] = 0;
    if (pieces_[p].kept_master.defined()) compute_written_[p] = 0;
  }
  // After the update nobody reads the copies of the gradients.
  for (std::size_t p = sub_group.begin; changed && options_.updates_on_host && p < sub_group.end; ++p) {
    piece_gradients_[p].reset();
  }
  staging_->release(sub_group.index, changed);
}

void ParameterStore::settle_stores() { staging_->settle(); }

void ParameterStore::abandon_step() {
  drop_gradients(/*applied=*/false);
  // An update that was ended half way may have written copies that are made anew now.
  std::fill(compute_written_.begin(), compute_written_.end(), 0);
  std::fill(is_kept_.begin(), is_kept_.end(), 0);
  staging_->give_up();
}

/// Gives the master of entry i, which is on a store, its first values: those of the whole parameter.
void ParameterStore::put_master(std::size_t i, const at::Tensor& values) {
  const Range part = plans_[i].part;
  const at::ScalarType dtype = plans_[i].master;
  const at::Tensor mine = values.reshape({-1}).narrow(0, part.offset, part.numel).to(at::kCPU, dtype).contiguous();
  std::vector<OffloadDevice::Range> ranges;
  for (std::size_t p = first_piece_[i]; p < first_piece_[i + 1]; ++p) {
    const std::size_t tile = sub_group_of_[p];
    const auto bytes = static_cast<std::uint64_t>(pieces_[p].numel) * mine.element_size();
    auto* from = static_cast<std::byte*>(mine.data_ptr()) + pieces_[p].offset * mine.element_size();
    if (bytes == 0) continue;
    if (staging_->states_resident(tile)) {
      std::memcpy(staging_->states_memory(tile) + places_[p].master, from, bytes);
    } else {
      ranges.push_back({staging_->states_buffer(tile), places_[p].master, bytes, from, true});
    }
  }
  if (ranges.empty()) return;
  OffloadDevice& store = *options_.offload.states;
  store.wait(store.start(ranges));
}

void ParameterStore::visit_master(std::size_t i, bool changes, const VisitMaster& use) {
  for (std::size_t p = first_piece_[i]; p < first_piece_[i + 1]; ++p) {
    Piece& piece = pieces_[p];
    const bool stored = entries_[i].master.is_meta() || plans_[i].copy_stored() || piece.kept_master.defined();
    if (stored) acquire(sub_groups_[sub_group_of_[p]]);
    use(i, piece.master.view({-1}), piece.offset);
    if (!stored) continue;
    if (changes) {
      keep(p, std::nullopt);
      refresh_piece(piece);
    }
    release(sub_groups_[sub_group_of_[p]], changes);
  }
}

double ParameterStore::squares_of_master(std::size_t i) {
  double sum = 0;
  visit_master(i, /*changes=*/false,
               [&](std::size_t, const at::Tensor& master, std::int64_t) { sum += sum_of_squares({&master}).exact; });
  return sum;
}

double ParameterStore::squares_of_gradient(std::size_t i) {
  if (!plans_[i].gradient_stored) {
    const at::Tensor& gradient = gradients_->shown(i);
    return gradient.defined() ? sum_of_squares({&gradient}).exact : 0;
  }
  double sum = 0;
  for (std::size_t p = first_piece_[i]; gradients_->has(i) && p < first_piece_[i + 1]; ++p) {
    const SubGroup& sub_group = sub_groups_[sub_group_of_[p]];
    acquire(sub_group);
    sum += sum_of_squares({&pieces_[p].gradient}).exact;
    release(sub_group, false);
  }
  return sum;
}

bool ParameterStore::is_here(std::size_t i, int tensor) const {
  if (tensor == kMaster) return !entries_[i].master.is_meta();
  return is_counter(entry_spec(tensor)) || (!options_.offload.states && first_piece_[i] + 1 == first_piece_[i + 1]);
}

const at::Tensor& ParameterStore::kept(std::size_t i, int tensor) const { return kept_tensor(first_piece(i), tensor); }

const StateSpec& ParameterStore::entry_spec(int tensor) const {
  for (const StateSpec& spec : options_.states) {
    if (per_entry(spec) && tensor-- == 0) return spec;
  }
  throw std::logic_error("a parameter store was asked for a state that no entry has");
}

void ParameterStore::read_stored(std::size_t i, int tensor, std::int64_t from, at::Tensor to) {
  const std::int64_t until = from + to.numel();
  std::int64_t begin = 0;  // of the piece, in elements of the tensor
  for (std::size_t p = first_piece_[i]; p < first_piece_[i + 1]; ++p) {
    const std::int64_t end = begin + kept_tensor(pieces_[p], tensor).numel();
    const std::int64_t first = std::max(from, begin), last = std::min(until, end);
    if (first < last) {
      read_piece(p, tensor, first - begin, to.narrow(0, first - from, last - first));
    }
    begin = end;
  }
}

/// The same of one piece.
void ParameterStore::read_piece(std::size_t p, int tensor, std::int64_t from, at::Tensor to) {
  const SubGroup& sub_group = sub_groups_[sub_group_of_[p]];
  const at::Tensor& all = kept_tensor(pieces_[p], tensor);
  if (tensor != kMaster && !options_.offload.states) {
    to.copy_(all.view({-1}).narrow(0, from, to.numel()));
    return;
  }
  const bool with_parameters = tensor == kMaster && !plans_[pieces_[p].entry].master_stored;
  const auto& store = with_parameters ? options_.offload.parameters : options_.offload.states;
  const bool resident = !with_parameters && staging_->states_resident(sub_group.index);
  if (tensor != kMaster && !staging_->updated(sub_group.index)) {
    to.fill_(entry_spec(tensor).init);
  } else if (resident) {
    acquire(sub_group);
    to.copy_(all.view({-1}).narrow(0, from, to.numel()));
    release(sub_group, false);
  } else {
    const std::uint64_t place =
        tensor == kMaster ? places_[p].master : places_[p].states[static_cast<std::size_t>(tensor)];
    const std::uint64_t buffer =
        with_parameters ? staging_->parameters_buffer(sub_group.index) : staging_->states_buffer(sub_group.index);
    const OffloadDevice::Range range{buffer, place + static_cast<std::uint64_t>(from) * all.element_size(), to.nbytes(),
                                     to.data_ptr(), false};
    store->wait(store->start({&range, 1}));
  }
}

OffloadTraffic ParameterStore::offload_traffic() const {
  OffloadTraffic traffic;
  const OffloadOptions& offload = options_.offload;
  if (offload.states) traffic += offload.states->traffic();
  if (offload.parameters && offload.parameters != offload.states) traffic += offload.parameters->traffic();
  return traffic;
}

std::vector<std::string> ParameterStore::offload_lines() const {
  std::vector<std::string> lines;
  const auto& [states, parameters] = std::pair(options_.offload.states, options_.offload.parameters);
  const auto add = [&](const std::string& what, const OffloadDevice& store) {
    const std::string about = store.about();
    lines.push_back("offload: " + what + " on " + store.type() + (about.empty() ? "" : " (" + about + ")") + ", " +
                    bytes_text(store.reserved_bytes()) + " of a rank; staging " + std::to_string(staging_->slots()) +
                    " x " + bytes_text(staging_->slot_bytes()) +
                    (options_.offload.read_ahead ? "" : ", not read ahead") +
                    (options_.offload.write_behind ? "" : ", not written behind"));
  };
  if (states && states == parameters) {
    add("optimizer states and parameters", *states);
  } else {
    if (states) add("optimizer states", *states);
    if (parameters) add("parameters", *parameters);
  }
  return lines;
}

}  // namespace capstan
