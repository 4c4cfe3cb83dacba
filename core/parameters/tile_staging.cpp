#include "core/parameters/tile_staging.hpp"

#include <algorithm>
#include <exception>
#include <string>

#include "core/log.hpp"

namespace capstan {

TileStaging::TileStaging(std::vector<Tile> tiles, const Options& options)
    : tiles_(std::move(tiles)),
      options_(options),
      ids_(tiles_.size()),
      turn_of_(tiles_.size()),
      updated_(tiles_.size()),
      resident_(tiles_.size()) {
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    if (tiles_[i].states_resident) resident_[i] = HugePages(tiles_[i].states.bytes);
    if (!moves(i)) continue;
    turn_of_[i] = turns_.size();
    turns_.push_back(i);
    slot_bytes_ =
        std::max(slot_bytes_, tiles_[i].parameters.bytes + (tiles_[i].states_resident ? 0 : tiles_[i].states.bytes));
  }
  add_buffers();
  add_slots();
}

TileStaging::~TileStaging() {
  for (Slot& slot : slots_) {
    try {
      wait(slot);
    } catch (const std::exception& error) {
      log::warning(error.what());
    }
    std::byte* const memory = slot.pages.data();
    for (OffloadDevice* device : devices()) {
      if (!device->take_back(memory)) slot.pages.abandon();
    }
  }
}

bool TileStaging::moves(std::size_t tile) const {
  return tiles_[tile].parameters.bytes > 0 || (tiles_[tile].states.bytes > 0 && !tiles_[tile].states_resident);
}

std::vector<OffloadDevice*> TileStaging::devices() const {
  std::vector<OffloadDevice*> devices;
  if (options_.parameters != nullptr) devices.push_back(options_.parameters);
  if (options_.states != nullptr && options_.states != options_.parameters) devices.push_back(options_.states);
  return devices;
}

void TileStaging::add_buffers() {
  for (const std::size_t i : turns_) {
    const Tile& tile = tiles_[i];
    const std::string of = " of tile " + std::to_string(i);
    if (tile.parameters.bytes > 0) {
      ids_[i].parameters = options_.parameters->add_buffer(tile.parameters.bytes, "parameters" + of);
    }
    if (tile.states.bytes > 0 && !tile.states_resident) {
      ids_[i].states = options_.states->add_buffer(tile.states.bytes, "optimizer states" + of);
    }
  }
}

void TileStaging::add_slots() {
  for (const OffloadDevice* device : devices()) {
    if (device->in_flight_bytes() > 0) busy_bytes_ = std::min(busy_bytes_, device->in_flight_bytes());
  }
  slots_.resize(std::min(std::max<std::size_t>(options_.slots, 1), turns_.size()));
  for (Slot& slot : slots_) {
    slot.pages = HugePages(slot_bytes_);
    for (OffloadDevice* device : devices()) device->lend(slot.pages.data(), slot.pages.size());
  }
}

std::byte* TileStaging::parameters_memory(std::size_t tile) const {
  return slots_.empty() ? nullptr : slots_[turn_of_[tile] % slots_.size()].pages.data();
}

std::byte* TileStaging::states_memory(std::size_t tile) const {
  if (tiles_[tile].states_resident) return resident_[tile].data();
  return slots_.empty() ? nullptr : parameters_memory(tile) + tiles_[tile].parameters.bytes;
}

/// Starts to move a part of what the tile's slot shows, by one call a store.
void TileStaging::start(std::size_t tile, Part part) {
  const auto& [parameters, states, resident] = tiles_[tile];
  const bool write = part == Part::kChanges;
  std::vector<OffloadDevice::Range> of_parameters, of_states;
  const auto add = [write](auto& list, std::uint64_t id, std::byte* memory, std::uint64_t begin, std::uint64_t end) {
    if (begin < end) list.push_back({id, begin, end - begin, memory + begin, write});
  };
  if (part != Part::kGradients) {
    add(of_parameters, ids_[tile].parameters, parameters_memory(tile), write ? 0 : parameters.read_begin,
        parameters.bytes);
  }
  if (!resident) {
    const auto add_states = [&](std::uint64_t begin, std::uint64_t end) {
      add(of_states, ids_[tile].states, states_memory(tile), begin, end);
    };
    const std::uint64_t known = write || updated_[tile] ? states.late : states.initialised;
    const bool gradients = part == Part::kGradients || part == Part::kAll;
    if (part == Part::kAll && known == states.late) {
      add_states(0, states.bytes);
    } else {
      if (part != Part::kGradients) add_states(0, known);
      if (gradients) add_states(states.late, states.bytes);
    }
  }
  if (options_.parameters == options_.states) {
    of_parameters.insert(of_parameters.end(), of_states.begin(), of_states.end());
    of_states.clear();
  }
  Slot& slot = slot_of(tile);
  if (!of_parameters.empty()) {
    slot.under_way.emplace_back(options_.parameters, options_.parameters->start(of_parameters));
  }
  if (!of_states.empty()) slot.under_way.emplace_back(options_.states, options_.states->start(of_states));
}

/// What is under way ends, all of it, and then what has failed is thrown.
void TileStaging::wait(Slot& slot) {
  std::exception_ptr failure;
  for (const auto& [device, ticket] : std::exchange(slot.under_way, {})) {
    try {
      device->wait(ticket);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (!failure) return;
  // What a slot without a tile has under way is written.
  if (std::exchange(slot.tile, -1) < 0) lost_ = failure;
  std::rethrow_exception(failure);
}

void TileStaging::settle() {
  for (Slot& slot : slots_) {
    try {
      wait(slot);
    } catch (...) {
      if (!lost_) throw;
    }
  }
  if (lost_) std::rethrow_exception(lost_);
}

void TileStaging::give_up() {
  for (Slot& slot : slots_) {
    try {
      wait(slot);
    } catch (const std::exception&) {  // what the slot was to show or to keep is given up
    }
    slot.tile = -1;
    slot.held = slot.gradients = false;
  }
  lost_ = nullptr;
  gradients_ = false;
}

void TileStaging::read(std::size_t tile, bool gradients) {
  Slot& slot = slot_of(tile);
  wait(slot);
  slot.tile = -1;
  start(tile, gradients ? Part::kAll : Part::kAllButGradients);
  slot.tile = static_cast<std::ptrdiff_t>(tile);
  slot.gradients = gradients;
}

void TileStaging::set_gradients(bool there) {
  gradients_ = there;
  for (Slot& slot : slots_) slot.gradients = false;
}

/// One slot is the tile's own, and one is being written.
void TileStaging::read_ahead(std::size_t tile) {
  if (!options_.read_ahead) return;
  const std::size_t ahead = slots_.size() > 2 ? slots_.size() - 2 : slots_.size() - 1;
  std::uint64_t started = 0;
  for (std::size_t k = 1; k <= ahead && started < busy_bytes_; ++k) {
    started += slot_bytes_;
    const std::size_t next = turns_[(turn_of_[tile] + k) % turns_.size()];
    const Slot& slot = slot_of(next);
    if (slot.held) return;
    // The first tile after the last one is for the next update, which has other gradients.
    if (slot.tile != static_cast<std::ptrdiff_t>(next)) read(next, gradients_ && next > tile);
  }
}

bool TileStaging::acquire(std::size_t tile, Show show) {
  if (empty()) return true;
  if (!moves(tile)) return updated_[tile];
  Slot& slot = slot_of(tile);
  if (show == Show::kNothing) {
    wait(slot);
    slot.tile = -1;
  } else {
    if (lost_) std::rethrow_exception(lost_);
    if (slot.tile != static_cast<std::ptrdiff_t>(tile)) read(tile, gradients_);
    if (gradients_ && !slot.gradients) {
      start(tile, Part::kGradients);
      slot.gradients = true;
    }
    wait(slot);
  }
  slot.held = true;
  if (show == Show::kValues) read_ahead(tile);
  return updated_[tile];
}

void TileStaging::release(std::size_t tile, bool changed) {
  if (empty()) return;
  if (changed) updated_[tile] = true;
  if (!moves(tile)) return;
  Slot& slot = slot_of(tile);
  slot.held = false;
  // Changes that were not kept are no values of the tile.
  if (!changed) return;
  slot.tile = -1;
  try {
    start(tile, Part::kChanges);
    if (!options_.write_behind) wait(slot);
  } catch (...) {
    lost_ = std::current_exception();
    throw;
  }
}

void TileStaging::prefetch() {
  if (!options_.read_ahead) return;
  for (std::size_t k = 0; k < slots_.size() && k * slot_bytes_ < busy_bytes_; ++k) {
    Slot& slot = slots_[k];
    if (slot.held || slot.tile == static_cast<std::ptrdiff_t>(turns_[k])) continue;
    read(turns_[k], /*gradients=*/false);
  }
}

}  // namespace capstan
