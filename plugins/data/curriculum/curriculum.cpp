#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/sampler.hpp"
#include "plugins/data/common/sequence_length.hpp"
#include "plugins/data/curriculum/cluster_files.hpp"
#include "plugins/data/curriculum/clusters.hpp"
#include "plugins/data/curriculum/metrics.hpp"

namespace {

namespace sdk = capstan::sdk;
using capstan::curriculum::Cluster;
using capstan::curriculum::ClusterFiles;
using capstan::curriculum::Clusters;
using capstan::curriculum::Metric;

/// Metrics of these names make sequences shorter, as in the GPT training of Megatron-DeepSpeed.
constexpr std::string_view kTruncate = "seqlen_truncate", kReshape = "seqlen_reshape";

/// The section data_efficiency.data_sampling.curriculum_learning: samples are drawn that are as difficult as the
/// schedules of their metrics allow in a step.
class Curriculum {
 public:
  Curriculum(sdk::Host host, const sdk::Params& params)
      : host_(host),
        folder_(params.text("data_cluster_path")),
        metrics_(capstan::curriculum::read_metrics(host, params)) {}

  void start(const sdk::Sampling& sampling) {
    capstan::curriculum::open_metrics(metrics_, host_, sampling, folder_, host_.rank() == 0);
    samples_ = sampling.samples();
    seed_ = sampling.seed();
    if (host_.rank() == 0) files_.emplace(host_, folder_);
    clusters_ = no_clusters();
  }

  void next(std::int64_t step, std::span<std::int64_t> samples) {
    bool changed = step == 0;
    for (Metric& metric : metrics_) {
      const std::int64_t before = metric.schedule.current();
      // Steps of schedules count from 1.
      changed |= metric.schedule.update(step + 1) != before;
    }
    if (changed && clusters_->extend(limits())) write_last();
    if (clusters_->all().empty()) refuse_empty();
    clusters_->draw(step, samples);
  }

  void batch(sdk::Batch& batch) {
    for (const Metric& metric : metrics_) {
      const std::int64_t limit = metric.schedule.current();
      const bool truncate = metric.name == kTruncate, reshape = metric.name == kReshape;
      batch.set_number("difficulty_" + metric.name, static_cast<double>(limit));
      host_.record("Train/Samples/curriculum_difficulty_" + metric.name, static_cast<double>(limit));
      if (!truncate && !reshape) continue;
      if (limit < 1) {
        throw sdk::Error("curriculum_metrics." + metric.name + ": the difficulty is " + std::to_string(limit) +
                         ", and a sequence needs a token. Raise min_difficulty.");
      }
      capstan::data::SequenceLength sequences(batch);
      truncate ? sequences.cut(limit) : sequences.fold(limit);
    }
  }

  void save(const sdk::Sink& sink) {
    std::string text = "{\"difficulties\": [";
    for (const Metric& metric : metrics_) text += separated(text, std::to_string(metric.schedule.current()));
    text += "], \"clusters\": [";
    for (const Cluster& cluster : clusters_->all()) {
      std::string limits = "[";
      for (const std::int64_t limit : cluster.limits) limits += separated(limits, std::to_string(limit));
      text += separated(text, "{\"limits\": " + limits + "], \"size\": " + std::to_string(cluster.size()) +
                                  ", \"drawn\": " + std::to_string(cluster.drawn) + "}");
    }
    sink.write(text + "]}");
  }

  void load(const sdk::Document& saved) {
    const std::vector<double> difficulties = saved.numbers("difficulties");
    if (difficulties.size() != metrics_.size()) {
      throw sdk::Error("was saved with " + std::to_string(difficulties.size()) + " curriculum_metrics, and has " +
                       std::to_string(metrics_.size()) + " now. Resume with those of before.");
    }
    auto clusters = no_clusters();
    for (std::size_t i = 0; i < saved.size("clusters"); ++i) restore_cluster(*clusters, saved, i);
    clusters_ = std::move(clusters);
    for (std::size_t i = 0; i < metrics_.size(); ++i) {
      metrics_[i].schedule.restore(static_cast<std::int64_t>(difficulties[i]));
    }
  }

 private:
  /// A further item of a list under way.
  static std::string separated(const std::string& list, const std::string& item) {
    return (list.ends_with('[') ? "" : ", ") + item;
  }

  std::unique_ptr<Clusters> no_clusters() const {
    std::vector<const capstan::curriculum::MetricIndex*> indices;
    for (const Metric& metric : metrics_) {
      if (metric.clustered) indices.push_back(metric.index.get());
    }
    return std::make_unique<Clusters>(std::move(indices), samples_, seed_);
  }

  /// The difficulties of the clustered metrics.
  std::vector<std::int64_t> limits() const {
    std::vector<std::int64_t> out;
    for (const Metric& metric : metrics_) {
      if (metric.clustered) out.push_back(metric.schedule.current());
    }
    return out;
  }

  void restore_cluster(Clusters& clusters, const sdk::Document& saved, std::size_t i) const {
    const std::string at = "/clusters/" + std::to_string(i);
    std::vector<std::int64_t> limits;
    for (const double limit : saved.numbers(at + "/limits")) limits.push_back(static_cast<std::int64_t>(limit));
    const std::int64_t size = saved.integer(at + "/size"), drawn = saved.integer(at + "/drawn");
    const bool fits = limits.size() == this->limits().size() && drawn >= 0;
    const std::int64_t found = fits && clusters.extend(limits) ? clusters.all().back().size() : 0;
    if (found != size || found == 0) {
      throw sdk::Error("cluster " + std::to_string(i) + " had " + std::to_string(size) +
                       " samples when it was saved, and has " + std::to_string(found) +
                       " now: the index files or curriculum_metrics have changed. Resume with those of before.");
    }
    clusters.restore_drawn(drawn);
  }

  /// cluster_<metric><difficulty>_..., as DeepSpeed names them.
  void write_last() {
    if (!files_) return;
    std::string name = "cluster";
    for (const Metric& metric : metrics_) name += "_" + metric.name + std::to_string(metric.schedule.current());
    std::replace(name.begin(), name.end(), '/', '_');
    files_->write(name, clusters_->all().back());
  }

  [[noreturn]] void refuse_empty() const {
    std::string text;
    for (const Metric& metric : metrics_) {
      if (!metric.clustered) continue;
      text += (text.empty() ? "" : " and ") + std::string("'") + metric.name + "' up to " +
              (metric.by_value ? "" : "percentile ") + std::to_string(metric.schedule.current());
      if (metric.by_value) text += " (the least is " + std::to_string(metric.index->least()) + ")";
    }
    throw sdk::ConfigMistake("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
                             "no sample is as easy as the first step demands: " + text + ". Raise min_difficulty.");
  }

  sdk::Host host_;
  std::filesystem::path folder_;
  std::vector<Metric> metrics_;
  std::int64_t samples_ = 0;
  std::uint64_t seed_ = 0;
  std::optional<ClusterFiles> files_;
  std::unique_ptr<Clusters> clusters_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::sampler<Curriculum, "curriculum">)
