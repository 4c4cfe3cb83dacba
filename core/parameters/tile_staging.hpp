#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "core/memory/huge_pages.hpp"
#include "core/memory/offload_device.hpp"

namespace capstan {

/// Brings tiles into memory and back: tiles that follow the one that is updated are read ahead, those before it are
/// written behind, through a few staging slots that take turns. [engine]
///
/// A tile's memory has a fixed place, so that tensors over it can be made once; what they show is the tile's between
/// acquire() and release() alone.
class TileStaging {
 public:
  /// What a tile has on one store.
  struct Buffer {
    std::uint64_t bytes = 0;        // 0: nothing
    std::uint64_t initialised = 0;  // [0, initialised) has values before the first update
    std::uint64_t read_begin = 0;   // an update needs [read_begin, bytes)
    std::uint64_t late = 0;         // [late, bytes) are gradients, which are there from backward to the update alone
  };
  struct Tile {
    Buffer parameters, states;
    bool states_resident = false;  // the states are in memory for good (offload_optimizer.ratio)
  };
  struct Options {
    OffloadDevice* parameters = nullptr;  // the two stores, perhaps the same; null: nothing is there
    OffloadDevice* states = nullptr;
    std::size_t slots = 3;
    bool read_ahead = true, write_behind = true;  // pipeline_read, pipeline_write
  };
  /// What is asked of a tile's memory.
  enum class Show { kValues, kNothing };

  /// Of no tiles: everything is in memory, so that no call does anything.
  TileStaging() : TileStaging({}, Options{}) {}
  /// Makes room for the tiles' buffers, and the staging memory. Throws RuntimeFault.
  TileStaging(std::vector<Tile> tiles, const Options& options);
  ~TileStaging();
  TileStaging(const TileStaging&) = delete;

  bool empty() const { return tiles_.empty(); }
  /// Where a tile's bytes of each store are shown.
  std::byte* parameters_memory(std::size_t tile) const;
  std::byte* states_memory(std::size_t tile) const;
  /// The buffers of a tile, for transfers beside acquire() and release().
  std::uint64_t parameters_buffer(std::size_t tile) const { return ids_[tile].parameters; }
  std::uint64_t states_buffer(std::size_t tile) const { return ids_[tile].states; }
  bool states_resident(std::size_t tile) const { return tiles_[tile].states_resident; }
  /// Whether the states were ever released with changes.
  bool updated(std::size_t tile) const { return updated_[tile]; }

  /// Makes the memory of a tile show its values, or nothing of use where all of them are about to be overwritten.
  /// Returns whether states were ever released with changes: else the memory shows of them what is initialised alone.
  /// Throws RuntimeFault.
  bool acquire(std::size_t tile, Show show);
  /// Ends that; `changed`: the tile now has what its memory shows.
  void release(std::size_t tile, bool changed);
  /// Starts to read the first tiles: an update is near.
  void prefetch();
  /// Whether the tiles have gradients now, which acquire() shows then.
  void set_gradients(bool there);
  /// Waits until the changes of all tiles are on their stores. Throws RuntimeFault where that has failed, at any time
  /// before too: acquire() throws the same then, because the stores have something else than the tiles.
  void settle();
  /// Forgets what is under way, and what has failed: all tiles are about to be overwritten.
  void give_up();

  std::size_t slots() const { return slots_.size(); }
  std::uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  struct Ids {
    std::uint64_t parameters = 0, states = 0;
  };
  struct Slot {
    HugePages pages;
    std::ptrdiff_t tile = -1;  // which the memory shows, or will when what is under way has ended
    bool held = false, gradients = false;
    std::vector<std::pair<OffloadDevice*, OffloadDevice::Ticket>> under_way;
  };
  enum class Part { kAllButGradients, kGradients, kAll, kChanges };

  bool moves(std::size_t tile) const;
  void add_buffers();
  void add_slots();
  std::vector<OffloadDevice*> devices() const;
  Slot& slot_of(std::size_t tile) { return slots_[turn_of_[tile] % slots_.size()]; }
  void start(std::size_t tile, Part part);
  void read(std::size_t tile, bool gradients);
  void read_ahead(std::size_t tile);
  void wait(Slot& slot);

  std::vector<Tile> tiles_;
  Options options_;
  std::vector<Ids> ids_;
  std::vector<std::size_t> turns_;    // the tiles that move, in their order
  std::vector<std::size_t> turn_of_;  // of each tile, among them
  std::vector<bool> updated_;         // a tile: its states were released with changes
  std::vector<HugePages> resident_;   // the states of each resident tile
  std::vector<Slot> slots_;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t busy_bytes_ = UINT64_MAX;  // read so far ahead the stores have enough to do
  bool gradients_ = false;
  std::exception_ptr lost_;  // why changes of a tile are not on its store; null: they are, or will be
};

}  // namespace capstan
