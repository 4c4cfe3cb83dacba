#pragma once

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"
#include "plugins/data/curriculum/clusters.hpp"

namespace capstan::curriculum {

/// Writes clusters as DeepSpeed does, for its tools to read: one row of samples in NAME.idx and NAME.bin. Training
/// reads none of them. A thread writes, one cluster after the other.
class ClusterFiles {
 public:
  ClusterFiles(const sdk::Host& host, std::filesystem::path folder) : host_(host), folder_(std::move(folder)) {}
  ~ClusterFiles() { wait(); }

  /// In the place of a file of that name. The index of the cluster must outlive this.
  void write(const std::string& name, Cluster cluster);

 private:
  /// Says what the last could not be written for.
  void wait() noexcept;

  sdk::Host host_;
  std::filesystem::path folder_;
  std::future<std::string> fault_;
};

}  // namespace capstan::curriculum
