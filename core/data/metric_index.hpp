#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/data/metric_shard.hpp"

namespace capstan {

/// Writes what a curriculum needs of a metric, below `folder`, as DeepSpeed's analysis names it and with its bytes:
/// <name>_sample_to_metric, the number of each sample; <name>_index_to_metric, the numbers that there are, ascending;
/// <name>_index_to_sample, the samples of each of them; <name>_index_to_sample_percentile_merged, these rows in at most
/// about a hundred. Types are the smallest that hold the numbers. Sorts in a file, not in memory: about 16 bytes a
/// sample on the disk while it runs. `got_on` is told how many samples are done of the shares of the work. Throws
/// RuntimeFault.
void write_metric_index(const std::filesystem::path& folder, const std::string& name, const MetricShards& shards,
                        std::int64_t samples, const std::function<void(double share)>& got_on = {});

/// The sums of a metric with a width over all shards.
std::vector<std::int64_t> summed(const MetricShards& shards);

/// Writes them as <name>_metric_value: one row.
void write_metric_value(const std::filesystem::path& folder, const std::string& name,
                        const std::vector<std::int64_t>& values);

}  // namespace capstan
