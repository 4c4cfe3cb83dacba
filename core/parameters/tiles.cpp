#include "core/parameters/tiles.hpp"

#include <algorithm>
#include <utility>

namespace capstan {
namespace {

class Planner {
 public:
  Planner(const std::vector<TileEntry>& entries, std::int64_t tile_elements, std::int64_t block,
          std::uint64_t alignment)
      : entries_(entries), limit_(std::max(tile_elements, block)), block_(block), alignment_(alignment) {}

  std::vector<PlannedTile> plan() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].may_be_cut) {
        add_in_pieces(i);
      } else {
        add_whole(i);
      }
    }
    close();
    return std::move(tiles_);
  }

 private:
  void add_whole(std::size_t i) {
    const std::int64_t planned = entries_[i].planned;
    if (elements_ > 0 && elements_ + planned > limit_) close();
    open_.pieces.push_back({.entry = i, .numel = entries_[i].numel});
    elements_ += planned;
  }

  void add_in_pieces(std::size_t i) {
    const std::int64_t numel = entries_[i].numel;
    std::int64_t done = 0;
    do {
      std::int64_t count = std::min(numel - done, std::max<std::int64_t>(limit_ - elements_, 0));
      if (done + count < numel) count = count / block_ * block_;
      if (count > 0 || numel == 0) {
        open_.pieces.push_back({.entry = i, .offset = done, .numel = count});
        elements_ += count;
        done += count;
      }
      if (done < numel) close();
    } while (done < numel);
  }

  void close() {
    if (open_.pieces.empty()) return;
    lay_out(open_);
    tiles_.push_back(std::move(open_));
    open_ = {};
    elements_ = 0;
  }

  std::uint64_t place(std::uint64_t& end, std::uint64_t bytes) const {
    const std::uint64_t begin = end;
    end += (bytes + alignment_ - 1) / alignment_ * alignment_;
    return begin;
  }

  static std::uint64_t state_bytes(const TileEntry::State& state, std::int64_t numel) {
    if (!state.there) return 0;
    if (state.block == 0) return state.bytes;
    return static_cast<std::uint64_t>((numel + state.block - 1) / state.block) * state.bytes;
  }

  /// The parameters' buffer has compute copies first, which an update need not read. The states' buffer has masters
  /// first, which are there before the first update, and gradients last, which are there for a while.
  void lay_out(PlannedTile& tile) const {
    const auto bytes = [](const TilePiece& piece, std::uint64_t of_element) {
      return static_cast<std::uint64_t>(piece.numel) * of_element;
    };
    std::uint64_t end = 0;
    for (TilePiece& piece : tile.pieces) piece.compute = place(end, bytes(piece, entries_[piece.entry].compute));
    tile.copies_end = end;
    for (TilePiece& piece : tile.pieces) {
      const std::uint64_t of_element = entries_[piece.entry].master_with_parameters;
      if (of_element > 0) piece.master = place(end, bytes(piece, of_element));
    }
    tile.parameter_bytes = std::exchange(end, 0);
    for (TilePiece& piece : tile.pieces) {
      if (entries_[piece.entry].master > 0) piece.master = place(end, bytes(piece, entries_[piece.entry].master));
    }
    tile.masters_end = end;
    for (TilePiece& piece : tile.pieces) {
      for (const TileEntry::State& state : entries_[piece.entry].states) {
        piece.states.push_back(place(end, state_bytes(state, piece.numel)));
      }
    }
    tile.gradients_begin = end;
    for (TilePiece& piece : tile.pieces) piece.gradient = place(end, bytes(piece, entries_[piece.entry].gradient));
    tile.state_bytes = end;
  }

  const std::vector<TileEntry>& entries_;
  std::int64_t limit_, block_;
  std::uint64_t alignment_;
  std::vector<PlannedTile> tiles_;
  PlannedTile open_;
  std::int64_t elements_ = 0;  // of the open tile
};

}  // namespace

std::vector<PlannedTile> plan_tiles(const std::vector<TileEntry>& entries, std::int64_t tile_elements,
                                    std::int64_t block, std::uint64_t alignment) {
  return Planner(entries, tile_elements, block, alignment).plan();
}

}  // namespace capstan
