#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/run/loaded_config.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The folder of capstan.run.save_dir, and the checkpoints in it that are this run's. [one thread]
class SaveFolder {
 public:
  /// Called by all ranks. `loaded` must outlive this object.
  explicit SaveFolder(const LoadedConfig& loaded);

  /// Refuses a folder that holds checkpoints of another run, unless capstan.run.overwrite is set. `resume` is the
  /// argument of --resume. A run that torchrun or an elastic launch starts again may go on in its own folder. Called by
  /// all ranks. Throws RuntimeFault on all of them.
  void refuse_other_run(const std::string& resume) const;
  /// This run goes on at `step`: checkpoints of `run` up to that step are its own. Without `run`, the checkpoints that
  /// name no run are.
  void go_on(const std::string& run, std::int64_t step);
  /// For the client state of a checkpoint: the processes that start this run again where a process is lost.
  Json restarting_parents() const;
  /// `tag` has the lowest evaluation loss so far: capstan.run.keep spares it.
  void mark_best(const std::string& tag) const;
  /// This run has saved `tag`. Deletes its oldest checkpoints as capstan.run.keep says.
  void add(const std::string& tag);

 private:
  /// Whether this rank looks after the folder: rank 0, or with node-local storage one rank of each node.
  bool leads() const;
  bool restarts(const std::string& tag) const;
  std::string refusal(const std::string& resume) const;

  const LoadedConfig& loaded_;
  std::set<std::string> parents_;  // restarting_parent() of all ranks
  std::set<std::string> own_;      // tags
};

}  // namespace capstan
