#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/elastic/snapshot_segment.hpp"

namespace capstan {

/// One snapshot of a run, whole or not: generations follow one another, and so do the snapshots of each.
struct SnapshotId {
  std::int64_t generation = 0, sequence = 0;
  auto operator<=>(const SnapshotId&) const = default;
};

/// The folder in shared memory in which the processes of a host keep snapshots: two segments each, written in turn, so
/// that one of them is whole at any instant. What a process has left stays until the others have a newer whole
/// snapshot without it. Files of it are gone with the folder, which is its maker's to remove. [one thread at a time]
class SnapshotFolder {
 public:
  /// `member`: the number of this process in the launch. `generation`: that of the world that it is part of. An engine
  /// uses the folder: one at a time, and none longer than it. Creates the folder with mode 0700 unless it exists.
  /// Throws RuntimeFault where it belongs to another user, is a link, or others may write to it: they could plant
  /// snapshots.
  SnapshotFolder(std::filesystem::path path, std::int64_t member, std::int64_t generation);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t member() const { return member_; }
  std::int64_t generation() const { return generation_; }
  /// The world is another one; no engine of the former one uses the folder any more.
  void enter(std::int64_t generation);

  /// What stands in the folder, of all processes.
  struct Found {
    std::vector<SealedSegment> segments;
    std::vector<std::string> damaged;  // why others are no use, a sentence each
  };
  Found find() const;

  /// All parts of this snapshot, of a step, are sealed, on all ranks: it must last until another one is.
  void keep(SnapshotId whole, std::int64_t step) {
    kept_ = whole;
    kept_step_ = step;
  }
  /// The step of the kept snapshot; 0: none is kept.
  std::int64_t kept_step() const { return kept_step_; }
  /// The segment whose snapshot is not the kept one.
  SnapshotSegment& next();
  /// The number of the next snapshot.
  SnapshotId next_id() { return {generation_, ++sequence_}; }
  /// What was written to next() is sealed.
  void note_sealed(SnapshotId id) { own_.holds[own_.written] = id; }
  /// The same for a copy of what a member on another host has written.
  SnapshotSegment& next_copy(std::int64_t member);
  void note_sealed_copy(std::int64_t member, SnapshotId id);
  /// Removes what is of none of these members, but for parts of the kept snapshot unless these are `superseded`.
  void remove_others(const std::vector<std::int64_t>& members, bool superseded) const;

  /// Bytes of memory that the segment of next() has.
  std::uint64_t allocated_next() const { return own_.segments[own_.next_after(kept_)]->allocated(); }
  /// Bytes of memory of all segments in the folder.
  std::uint64_t allocated() const;
  /// Bytes of memory that are free where the folder is.
  std::uint64_t free_bytes() const;

 private:
  /// The two segments of a member, and what they hold; of generation 0: nothing whole.
  struct Pair {
    std::int64_t member = 0;
    std::unique_ptr<SnapshotSegment> segments[2];
    SnapshotId holds[2];
    int written = 0;  // the one that was given out last
    int next_after(SnapshotId kept) const;
    SnapshotSegment& next(SnapshotId kept);
  };
  Pair pair_of(std::int64_t member) const;

  std::filesystem::path path_;
  std::int64_t member_, generation_, sequence_ = 0;
  SnapshotId kept_;
  std::int64_t kept_step_ = 0;
  Pair own_;
  std::vector<Pair> copies_;
};

}  // namespace capstan
