#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/read_values.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// One tensor of a checkpoint, or this rank's part of it.
struct CheckpointTensor {
  std::string parameter;            // "blocks.0.ln1.weight", or a buffer's name; empty for states of the whole model
  std::string state;                // "param" (fp32 master or the parameter itself), "exp_avg", "buffer", ...
  std::vector<std::int64_t> shape;  // full shape
  std::int64_t offset = 0;          // first element of this part in the flattened tensor
  at::Tensor values;                // contiguous, numel elements of the part
  ReadValues read = nullptr;  // to write only. Set: `values` is on the meta device and tells dtype and numel alone
};

struct CheckpointContents {
  std::vector<CheckpointTensor> tensors;  // this rank's
  Json state = Json::object();            // counters, RNG states, component states, client state, configuration
};

/// Writes <dir>/<tag>/: rank_00000.safetensors, state.json, index.json; aside, synced, renamed, folder synced, `latest`
/// last. An error or a crash at any instant leaves what `latest` named before. Throws RuntimeFault.
void write_checkpoint(const std::filesystem::path& dir, const std::string& tag, const CheckpointContents& contents);

/// One of the processes that write a checkpoint together.
struct CheckpointRank {
  int rank = 0;
  /// Makes the folder and writes what all files have in common: rank 0, or with storage of its own one rank a node.
  bool leads = true;
  /// Gives the texts of all ranks, in rank order, on every rank.
  std::function<std::vector<std::string>(const std::string& name, const std::string& text)> gather;
};

/// Writes a checkpoint by all ranks at once, into one folder that all ranks see, or one on each node that its ranks
/// see: each rank writes rank_<its number>.safetensors with its tensors, who leads the rest, with rank 0's `state`.
/// `latest` is moved once the checkpoint is in place on all nodes. What fails on one rank is thrown on all.
void write_checkpoint(const std::filesystem::path& dir, const std::string& tag, const CheckpointContents& contents,
                      const CheckpointRank& rank);

/// The tag that <dir>/latest names. Throws RuntimeFault when there is none.
std::string latest_tag(const std::filesystem::path& dir);

/// Names `tag` in <dir>/best, the checkpoint with the lowest evaluation loss, which prune_checkpoints() keeps. Throws
/// RuntimeFault.
void note_best(const std::filesystem::path& dir, const std::string& tag);
/// The tag that <dir>/best names; empty where there is no such file. Throws RuntimeFault when it holds no name.
std::string best_tag(const std::filesystem::path& dir);
/// The tag that a user means by `tag`: that of <dir>/best for "best", where no checkpoint has this name. Throws
/// RuntimeFault.
std::string tag_named(const std::filesystem::path& dir, const std::string& tag);
/// The tag of a checkpoint as the command line names it: the latest one where it names none. Throws RuntimeFault.
std::string tag_of(const CheckpointName& name);

/// Reads and verifies all of a checkpoint, Capstan's, DeepSpeed's (deepspeed/) or torch's (torch_dcp/): presence,
/// sizes, checksums. Throws RuntimeFault naming the file, the tensor and what is wrong. Tensors are mapped from the
/// file where possible and must be copied to be written.
CheckpointContents read_checkpoint(const std::filesystem::path& dir, const std::string& tag);

/// The parameters that a run trains: a list of names a parameter group, in the order of the model.
using TrainedNames = std::vector<std::vector<std::string>>;

/// Reads the part of one of several processes: the bytes of tensors that `takes` is false for are not read. Their
/// values stand unverified in what is returned, or on the meta device, and must not be used. `trained`: to whom the
/// states of an optimizer belong where the checkpoint has no names for them, as those of DeepSpeed at ZeRO stage 0;
/// empty: such states are left out.
CheckpointContents read_checkpoint(const std::filesystem::path& dir, const std::string& tag,
                                   const std::function<bool(const CheckpointTensor&)>& takes,
                                   const TrainedNames& trained = {});

/// The state of a checkpoint, verified, without its tensors. Throws as read_checkpoint() does.
Json read_checkpoint_state(const std::filesystem::path& dir, const std::string& tag);

/// Of the checkpoints `own` that are there (folders global_step<N> with an index), deletes the oldest, so that `keep`
/// remain; never those that `latest` and `best` name. keep 0: all stay.
void prune_checkpoints(const std::filesystem::path& dir, std::int64_t keep, const std::set<std::string>& own);

}  // namespace capstan
