#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan {

/// A run of elements of one parameter's part that is updated at once, and where its tensors stand in its tile's
/// buffers, in bytes.
struct TilePiece {
  std::size_t entry = 0;
  std::int64_t offset = 0, numel = 0;  // in elements, of this rank's part
  std::uint64_t compute = 0, master = 0, gradient = 0;
  std::vector<std::uint64_t> states;  // one a state of the entry, in manifest order
};

/// Pieces that are in memory together: those of a run of parameters.
struct PlannedTile {
  std::vector<TilePiece> pieces;
  std::uint64_t copies_end = 0, parameter_bytes = 0;                    // in the parameters' buffer
  std::uint64_t masters_end = 0, gradients_begin = 0, state_bytes = 0;  // in the states' buffer
};

/// What the plan of tiles needs to know of a trainable parameter.
struct TileEntry {
  /// A state: the bytes of so many elements from the part's begin on.
  struct State {
    std::int64_t block = 1;   // elements that share a value; 0: the whole parameter has one state of `bytes`
    std::uint64_t bytes = 0;  // of a value
    bool there = false;       // the parameter has it, and it is on the store
  };
  std::int64_t numel = 0;    // of this rank's part
  std::int64_t planned = 0;  // the same on all ranks, where tiles are to begin at the same parameters
  bool may_be_cut = false;
  // Bytes an element, where it is on a store; 0: it is in memory, or there is none.
  std::uint64_t compute = 0, master_with_parameters = 0, master = 0, gradient = 0;
  std::vector<State> states;
};

/// Cuts parameters into tiles of at most `tile_elements`, but at least a parameter where it may not be cut; others are
/// cut at multiples of `block` elements. Everything in a buffer begins at a multiple of `alignment` bytes.
std::vector<PlannedTile> plan_tiles(const std::vector<TileEntry>& entries, std::int64_t tile_elements,
                                    std::int64_t block, std::uint64_t alignment);

}  // namespace capstan
