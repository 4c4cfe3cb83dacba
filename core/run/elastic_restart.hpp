#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/elastic/life_lock.hpp"
#include "core/run/loaded_config.hpp"

namespace capstan {

/// A training whose processes torchrun ends and starts anew, all of them, whenever one is lost or hosts come and go.
/// What the processes before have left in shared memory is in a folder of the run, one a host. [one thread]
class ElasticRestart {
 public:
  /// Nothing where the configuration has no elasticity, or no agent of torchrun has started this process. From here on
  /// this process is asked to leave where its parent is gone. Called by all ranks. Throws RuntimeFault.
  static std::optional<ElasticRestart> of(const LoadedConfig& loaded, const ConfigText& text);
  const std::filesystem::path& folder() const { return folder_; }
  /// Counts the starts that have left something, from 1: the same on all ranks.
  std::int64_t generation() const { return generation_; }
  /// The number of this process among those of all starts.
  std::int64_t member() const { return member_; }
  /// The run is alive.
  void touch() const;
  /// The run has ended, and nobody will go on with it. One process of each host calls it, after all.
  void remove() const;

 private:
  ElasticRestart(std::filesystem::path folder, std::unique_ptr<LifeLock> life);

  std::filesystem::path folder_;
  std::unique_ptr<LifeLock> life_;
  std::int64_t generation_ = 1, member_ = 0;
};

}  // namespace capstan
