#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

/// A checkpoint among others in a folder: of Capstan, of DeepSpeed, of torch.distributed.checkpoint, or a folder
/// checkpoint-<N> of transformers' Trainer.
struct ListedCheckpoint {
  std::string tag;                   // the name of its folder
  std::string writer;                // "Capstan", "DeepSpeed 0.19.8"; empty: it cannot be read
  std::optional<std::int64_t> step;  // nothing: it does not tell
  std::uint64_t bytes = 0;           // of all its files
  std::int64_t written = 0;          // when the last of its files was changed, in seconds since 1970
  bool is_latest = false;            // `latest`, or `latest_universal`, names it
  bool is_best = false;              // `best`, or trainer_state.json, names it
  std::string defect;                // why it is not whole; empty: it is, as far as sizes and structure tell
};

struct CheckpointList {
  std::vector<ListedCheckpoint> checkpoints;  // by step, then by name
  std::vector<std::string> unfinished;        // names that saves write to, or have left
  std::string defect;                         // of `latest`, `latest_universal` or `best`; empty: none
};

/// Looks at the structure and the sizes of all checkpoints of a folder, and not at their values, but for DeepSpeed's of
/// stage 0, whose values tell to which parameters states belong. Throws RuntimeFault for a folder that cannot be
/// listed.
CheckpointList list_checkpoints(const std::filesystem::path& dir);

/// Which checkpoints prune_listed() deletes, oldest first, and which stay although they are older than those that are
/// kept, each with the reason.
struct PrunePlan {
  std::vector<ListedCheckpoint> doomed;
  std::vector<std::pair<std::string, std::string>> spared;  // tag, reason
};

/// Keeps the `keep` furthest whole checkpoints that are called global_step<N> or checkpoint-<N>; of older ones, those
/// that `latest` or `best` names. A name of another kind is the user's own, and such a checkpoint stays. Where no
/// checkpoint is whole nothing is deleted. Throws RuntimeFault where `latest` or `best` cannot be read.
PrunePlan plan_prune(const CheckpointList& list, std::int64_t keep);

/// Deletes the checkpoints of the plan under the lock of the folder. Each is renamed and the folder synced before its
/// files go, so that nothing that is half deleted looks like a checkpoint. Throws RuntimeFault while another process
/// saves there, and where `latest` or `best` names one of them by now, or cannot be read.
void prune_listed(const std::filesystem::path& dir, const PrunePlan& plan);

}  // namespace capstan
