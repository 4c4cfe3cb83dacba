#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugins/data/curriculum/metric_index.hpp"

namespace capstan::curriculum {

/// Samples that came within the limits together. Cheap to copy.
struct Cluster {
  const MetricIndex* index = nullptr;  // the members are places begin ... end - 1 of it
  std::int64_t begin = 0, end = 0;
  std::shared_ptr<const std::vector<std::uint32_t>>
      members;                       // of several metrics; without either the places themselves
  std::vector<std::int64_t> limits;  // of the metrics, when it was formed
  std::int64_t drawn = 0;            // members that steps have taken

  std::int64_t size() const { return end - begin; }
  /// 0 <= place < size().
  std::int64_t member(std::int64_t place) const;
};

/// The clusters of a run (algorithm 2 of Li et al. 2022, arXiv 2212.03597). A step draws from them in proportion to
/// their sizes. Within a cluster each member comes once a pass, and each pass has an order of its own: all of it a
/// function of the seed, the step and how much was drawn, so that every rank finds the same.
class Clusters {
 public:
  /// `indices`: those of the clustered metrics, which outlive this.
  Clusters(std::vector<const MetricIndex*> indices, std::int64_t samples, std::uint64_t seed);

  /// Forms a cluster of the samples that lie within all limits, one an index, and are in no cluster yet. False where
  /// there are none.
  bool extend(const std::vector<std::int64_t>& limits);
  /// Draws as many samples as there is room for. 0 <= step.
  void draw(std::int64_t step, std::span<std::int64_t> out);

  const std::vector<Cluster>& all() const { return clusters_; }
  /// Sets what was drawn of the last cluster.
  void restore_drawn(std::int64_t drawn) { clusters_.back().drawn = drawn; }

 private:
  std::vector<std::uint32_t> newly_within(const std::vector<std::int64_t>& limits);
  void take(std::size_t cluster, std::span<std::int64_t> out);

  std::vector<const MetricIndex*> indices_;
  std::int64_t samples_;
  std::uint64_t seed_;
  std::vector<Cluster> clusters_;
  // Of several metrics: a bit a sample, for each metric whether it is within the limit, and whether it has a cluster.
  std::vector<std::vector<std::uint64_t>> within_;
  std::vector<std::uint64_t> used_;
  std::vector<std::int64_t> reached_;  // places of each index that are within the limit
};

}  // namespace capstan::curriculum
