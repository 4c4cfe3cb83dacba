#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"
#include "capstan/sdk/sampler.hpp"
#include "plugins/data/common/difficulty_schedule.hpp"
#include "plugins/data/curriculum/metric_index.hpp"

namespace capstan::curriculum {

/// One of curriculum_metrics.
struct Metric {
  std::string name;
  bool clustered = false;  // clustering_type "schedule_based": only samples within its limit are drawn
  bool by_value = false;   // difficulty_type
  MetricIndex::Files files;
  data::DifficultySchedule schedule;
  std::unique_ptr<MetricIndex> index;  // of a clustered metric, once it is opened
};

/// The path of a metric's key in the configuration, for messages.
std::string key_of(const std::string& metric, const std::string& key);

/// Reads them, in the order of the configuration. Throws sdk::Error naming the metric.
std::vector<Metric> read_metrics(const sdk::Host& host, const sdk::Params& params);

/// Opens the files of the clustered ones and looks at them, the first time at every sample. `folder` is that of the
/// clusters, and is made where `may_write`. Throws sdk::Error naming the
/// file, and sdk::ConfigMistake for files that are not there.
void open_metrics(std::vector<Metric>& metrics, const sdk::Host& host, const sdk::Sampling& sampling,
                  const std::filesystem::path& folder, bool may_write);

}  // namespace capstan::curriculum
