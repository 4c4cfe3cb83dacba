#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/communicator.hpp"
#include "core/elastic/snapshot_folder.hpp"

namespace capstan {

/// What the ranks have of one snapshot.
struct SnapshotCandidate {
  SnapshotId id;
  std::int64_t step = 0, world = 0;  // of the run, and the ranks that made it
  std::uint64_t layout = 0;
  std::map<std::int64_t, std::set<int>> holders;  // by part: the ranks in whose folder it is

  bool is_whole() const { return static_cast<std::int64_t>(holders.size()) == world; }
};

/// What the folders of all ranks hold, the newest first, and why some files are no use, a sentence each. Called by all
/// ranks, with what each has found; gives the same on all.
struct FoundSnapshots {
  std::vector<SnapshotCandidate> candidates;
  std::set<std::string> damaged;
};
FoundSnapshots found_by_all(const SnapshotFolder::Found& found, Communicator& ranks);

using TakesTensor = std::function<bool(const CheckpointTensor&)>;

/// All parts of a whole snapshot: of those in this rank's own folder the tensors are mapped, of others those that
/// `takes` is true for are sent by ranks that have them, and the rest tell dtype and size alone. Called by all ranks;
/// `defect` tells what is wrong with the snapshot on this rank, and the tensors are no use then.
CheckpointContents read_parts(const SnapshotCandidate& candidate, const SnapshotFolder::Found& found,
                              const TakesTensor& takes, Communicator& ranks, std::string& defect);

}  // namespace capstan
