#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/elastic/snapshot_segment.hpp"

// A checkpoint in shared memory: the tensors and the index of a checkpoint, in segments in place of files.

namespace capstan {

/// Where the tensors of one rank stand in its segments. It is the same from one snapshot to the next unless the tensors
/// are others, and so is the index.
class SnapshotLayout {
 public:
  explicit SnapshotLayout(const std::vector<CheckpointTensor>& tensors);
  /// Whether it is that of these tensors, whatever their values are.
  bool fits(const std::vector<CheckpointTensor>& tensors) const;
  /// The sizes of a segment with these tensors and a state of so many bytes.
  SnapshotSizes sizes(std::uint64_t state_bytes) const;
  const std::string& index() const { return index_; }
  /// Where the values of tensor k begin in the segment's data; a multiple of 64.
  std::uint64_t begin(std::size_t k) const { return places_[k].begin; }

 private:
  std::vector<IndexedTensor> places_;
  std::string index_;
  std::uint64_t bytes_ = 0;
};

/// Fills and seals an opened segment with `tensors`, which `layout` fits. Each value is read once. A tensor that is not
/// on the CPU is copied through host memory. Throws what ReadValues throws; the segment then stays unsealed.
void write_snapshot(SnapshotSegment& segment, const SnapshotLayout& layout,
                    const std::vector<CheckpointTensor>& tensors, const std::string& state, const SnapshotFacts& facts);

/// Where tensors stand by an index, in data of so many bytes. Throws RuntimeFault: `where`, then the defect.
std::vector<IndexedTensor> snapshot_places(std::string_view index, std::uint64_t data_bytes, const std::string& where);

/// The tensors of a segment. Those that `takes` is true for are compared with their checksums; the values of others
/// must not be used. All are to be read only, and keep the segment mapped. Throws RuntimeFault naming the file and the
/// tensor.
std::vector<CheckpointTensor> read_snapshot(const SealedSegment& segment,
                                            const std::function<bool(const CheckpointTensor&)>& takes);

/// Throws RuntimeFault: `where`, then the defect: a tensor whose parts leave a gap, or overlap.
void check_parts(const std::vector<CheckpointTensor>& tensors, const std::string& where);

/// How a snapshot is copied: past the caches where they would not hold it. Nobody reads it while the training goes on,
/// which has better use for them.
enum class CopyPath { kThroughCaches, kPastCaches };
CopyPath copy_path(std::uint64_t snapshot_bytes);
/// Copies `count` bytes and gives their XXH3-64. Each byte is read from memory once.
std::uint64_t copy_hashed(std::byte* to, const std::byte* from, std::size_t count, CopyPath path);

}  // namespace capstan
