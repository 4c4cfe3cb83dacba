#include "plugins/data/curriculum/metrics.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/output_folder.hpp"

namespace capstan::curriculum {
namespace {

namespace fs = std::filesystem;

void make_cluster_folder(const sdk::Host& host, const fs::path& folder) {
  std::error_code error;
  try {
    if (const std::string made = sdk::make_folder(folder); !made.empty()) host.info(made);
  } catch (const fs::filesystem_error& failure) {
    error = failure.code();
  }
  const char* reason = error ? nullptr : ::access(folder.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  if (reason && *reason == '\0') return;
  throw sdk::Error("data_cluster_path '" + folder.string() + "': cannot be written: " +
                   (reason ? std::string(reason) : error.message()) + ". Name a folder that can.");
}

/// Looks for the two files of each index before any is opened, so that one run names all that are missing.
void refuse_missing_files(const std::vector<Metric>& metrics) {
  sdk::ConfigMistakes mistakes;
  const auto look = [&](const Metric& metric, const char* key, const std::string& name) {
    if (name.empty()) return;
    for (const char* ending : {".idx", ".bin"}) {
      std::error_code error;
      if (fs::exists(name + ending, error)) continue;
      mistakes.add(key_of(metric.name, key), "'" + name + ending +
                                                 "': " + (error ? error.message() : "there is no such file") +
                                                 ". Make the index with 'capstan analyze', and name it without its "
                                                 "ending.");
      return;
    }
  };
  for (const Metric& metric : metrics) {
    if (!metric.clustered) continue;
    look(metric, "index_to_sample_path", metric.files.index_to_sample);
    look(metric, "index_to_metric_path", metric.files.index_to_metric);
  }
  mistakes.throw_if_any();
}

/// What `capstan analyze` says beside its files of the data that it measured; an empty text where it says nothing.
std::string analysed_data(const sdk::Host& host, std::string index_to_sample) {
  for (const char* ending : {"_percentile_merged", "_index_to_sample"}) {
    if (index_to_sample.ends_with(ending)) index_to_sample.resize(index_to_sample.size() - std::strlen(ending));
  }
  std::ifstream in(index_to_sample + "_analysis.json", std::ios::binary);
  if (!in) return "";
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const sdk::Document record(host.raw(), sdk::to_str(text), sdk::current_error);
  return record.has("fingerprint") ? record.text("fingerprint") : "";
}

}  // namespace

std::string key_of(const std::string& metric, const std::string& key) {
  return "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics." + metric + "." + key;
}

std::vector<Metric> read_metrics(const sdk::Host& host, const sdk::Params& params) {
  std::vector<Metric> metrics;
  for (const std::string& name : params.names("curriculum_metrics")) {
    const std::string section = "/curriculum_metrics/" + sdk::Document::escaped(name);
    const auto text = [&](const char* key) {
      return params.has(section + key) ? params.text(section + key) : std::string();
    };
    Metric metric{
        .name = name,
        .clustered = text("/clustering_type") == "schedule_based",
        .by_value = text("/difficulty_type") == "value",
        .files = {},
        .schedule = {params, section, [host, name](std::int64_t step) { return host.difficulty(name, step); }},
        .index = nullptr};
    metric.files = {.metric = name,
                    .index_to_sample = text("/index_to_sample_path"),
                    .index_to_metric = metric.by_value ? text("/index_to_metric_path") : ""};
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

void open_metrics(std::vector<Metric>& metrics, const sdk::Host& host, const sdk::Sampling& sampling,
                  const fs::path& folder, bool may_write) {
  if (may_write) make_cluster_folder(host, folder);
  refuse_missing_files(metrics);
  for (Metric& metric : metrics) {
    if (!metric.clustered) continue;
    const std::string measured = analysed_data(host, metric.files.index_to_sample);
    if (!measured.empty() && !sampling.fingerprint().empty() && measured != sampling.fingerprint()) {
      throw sdk::Error(metric.files.index_to_sample + ": the metric was measured on other data (fingerprint " +
                       measured + ", and that of this data is " + std::string(sampling.fingerprint()) +
                       "). Run capstan analyze on this data, with the sequence length of the run.");
    }
    metric.index = std::make_unique<MetricIndex>(metric.files, sampling.samples(), metric.schedule.maximum());
    metric.index->check(folder, may_write);
  }
}

}  // namespace capstan::curriculum
