// `capstan analyze`: measures every sample of the data, for curricula that begin with the easy ones.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "capstan/sdk/indexed_file.hpp"
#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/comm/as_one.hpp"
#include "core/config/component_params.hpp"
#include "core/data/mapped_file.hpp"
#include "core/data/metric_index.hpp"
#include "core/data/metric_shard.hpp"
#include "core/data/sample_metric.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/registry/registry.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_data.hpp"
#include "core/run/run_model.hpp"
#include "core/text/numbers.hpp"
#include "core/xxh3.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// Samples that are read at once.
constexpr std::int64_t kRows = 64;
/// Bytes on the disk for each sample and metric, at most: the shard, the room to sort in, the four indices.
constexpr std::uint64_t kBytesASample = 8 + 16 + 4 * 8 + 3 * 12;

/// How long an analysis may hold the folder that another one wants, before that is refused.
constexpr std::chrono::seconds kEnding{2};

std::string text_of(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), static_cast<std::size_t>(file.size())};
}

/// Keeps other analyses out of a folder for as long as it lives. Where the file system has no locks it holds none.
class AnalysisLock {
 public:
  explicit AnalysisLock(const fs::path& folder)
      : descriptor_(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) throw RuntimeFault((folder / ".lock").string() + ": " + std::strerror(errno) + ".");
    // The processes of an analysis that was killed may take a moment to end.
    const auto until = std::chrono::steady_clock::now() + kEnding;
    while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (std::chrono::steady_clock::now() > until) {
        ::close(descriptor_);
        throw RuntimeFault(folder.string() +
                           ": another 'capstan analyze' works in this folder. Wait for it, or name another folder "
                           "with --out.");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~AnalysisLock() { ::close(descriptor_); }
  AnalysisLock(const AnalysisLock&) = delete;

 private:
  int descriptor_;
};

/// One metric of the analysis, and the files that it has.
struct Measurement {
  std::unique_ptr<SampleMetric> metric;
  Json params;
  std::optional<MetricShards> shards;
  fs::path folder;
  bool done = false;
};

class Analysis {
 public:
  Analysis(const AnalyzeArguments& arguments, const LoadedConfig& loaded)
      : arguments_(arguments),
        loaded_(loaded),
        ranks_(*loaded.communicator),
        registry_(loaded.plugins, loaded.config.plugin_sha256),
        model_(loaded.config.run.model ? std::optional<Model>(build_model(loaded)) : std::nullopt),
        data_(open()),
        out_(arguments.out) {}

  int run() {
    for (const std::string& given : arguments_.metrics) add(given);
    if (order_.empty()) add("vocab_rarity");
    as_one(ranks_, "analyze: folder", [&] {
      create_folders(out_);
      if (leads()) lock_.emplace(out_);
      check_room();
    });
    say(counted(data_.samples(), "sample") + ", " + counted(static_cast<std::int64_t>(order_.size()), "metric") +
        needed_ + ", " + counted(ranks_.size(), "process", "processes"));
    for (const std::string& name : order_) measure(name);
    return 0;
  }

 private:
  bool leads() const { return ranks_.rank() == 0; }
  void say(const std::string& text) const {
    if (leads()) print("analyze: " + text + "\n");
  }
  /// All ranks come here before one goes on. A rank that is gone ends the others with a sentence.
  void meet() const { ranks_.all_gather_text("analyze: the shards of a round", ""); }

  Dataset open() const {
    const RunConfig& run = loaded_.config.run;
    if (run.data_paths.empty()) throw ConfigError("capstan.data.path: not given. Name what to analyse, with --data.");
    if (model_) return open_data(run.data_paths, "capstan.data.path", loaded_, *model_);
    if (!run.sequence_length) {
      throw ConfigError("capstan.data.sequence_length: not given, and no model is named that has one. Give --seq.");
    }
    return open_dataset(loaded_.config, loaded_.plugins,
                        {.paths = run.data_paths, .sequence_length = *run.sequence_length});
  }

  Json source() const {
    Json told = data_.facts();
    const Json facts = model_ ? model_->describe() : Json::object();
    if (const Json* size = facts.find("vocab_size")) told["vocabulary"] = *size;
    return told;
  }

  /// TYPE, or TYPE:{"parameter": value}.
  void add(const std::string& given) {
    const auto colon = given.find(':');
    const std::string type = given.substr(0, colon);
    Json params = Json::object();
    if (colon != std::string::npos) {
      try {
        params = Json::parse(given.substr(colon + 1));
      } catch (const std::exception& error) {
        throw UsageError("--metric " + given + ": what stands behind the colon must be a JSON object: " + error.what());
      }
    }
    if (measurements_.contains(type) && params.size() > 0) throw UsageError("--metric: '" + type + "' is named twice.");
    add(type, params);
  }

  void add(const std::string& type, const Json& given) {
    if (measurements_.contains(type)) return;
    Measurement& one = measurements_[type];
    one.params = checked_params("--metric " + type, "metric", type, given);
    one.metric = std::make_unique<SampleMetric>(
        registry_.create("--metric " + type, "metric", type, one.params, model_host()), source());
    for (const std::string& needed : one.metric->needs()) {
      if (needed == type) throw PluginError("metric '" + type + "' needs itself. Ask the plugin's author.");
      if (!measurements_.contains(needed)) needed_ += " (" + needed + ", which " + type + " needs)";
      add(needed, Json::object());
      if (measurements_.at(needed).metric->width() > 0) continue;
      throw PluginError("metric '" + type + "' needs the sums of '" + needed +
                        "', which has a number a sample. Ask the plugin's author.");
    }
    one.folder = out_ / type;
    order_.push_back(type);
  }

  /// The parameters in force, by the metric's manifest. Throws UsageError or ConfigError with all that is wrong.
  Json checked_params(const std::string& where, const std::string& kind, const std::string& type,
                      const Json& given) const {
    const ComponentRef found = loaded_.plugins.find(kind, type);
    if (!found) throw UsageError(where + ": " + loaded_.plugins.missing_reason(kind, type, "cpu"));
    return checked_component_params(given, where, *found.component);
  }

  void check_room() const {
    const auto samples = static_cast<std::uint64_t>(data_.samples());
    const std::uint64_t needed = samples * kBytesASample * order_.size();
    std::error_code error;
    const fs::space_info room = fs::space(out_, error);
    if (error || room.available >= needed) return;
    throw RuntimeFault(out_.string() + ": has room for " + grouped(static_cast<std::int64_t>(room.available)) +
                       " bytes, and " + grouped(data_.samples()) + " samples and " + std::to_string(order_.size()) +
                       " metrics may take " + grouped(static_cast<std::int64_t>(needed)) +
                       ". Name another folder with --out.");
  }

  /// A text that another analysis would not have: data, vocabulary, metric and parameters.
  std::string identity_of(const std::string& type) const {
    const Measurement& one = measurements_.at(type);
    std::string text = source().dump() + one.params.dump() + type;
    const IndexedPlugin& plugin = *loaded_.plugins.find("metric", type).plugin;
    text += plugin.manifest.name + plugin.manifest.version;
    for (const std::string& needed : one.metric->needs()) text += identity_of(needed);
    return hex(xxh3(text.data(), text.size()));
  }

  fs::path record_of(const std::string& type) const {
    return measurements_.at(type).folder / (type + "_analysis.json");
  }

  bool is_whole(const std::string& type) const {
    try {
      const Json record = Json::parse(text_of(record_of(type)));
      const Json* identity = record.find("identity");
      return identity && identity->is_string() && identity->as_string() == identity_of(type);
    } catch (const std::exception&) {
      return false;
    }
  }

  bool is_whole_for_all(const std::string& type) const {
    const auto told = ranks_.all_gather_text("analyze: whole", is_whole(type) ? "yes" : "no");
    return std::count(told.begin(), told.end(), "yes") == ranks_.size();
  }

  void measure(const std::string& type) {
    Measurement& one = measurements_.at(type);
    // A file system may show the files to one rank and not yet to another.
    if (ranks_.size() == 1 ? is_whole(type) : is_whole_for_all(type)) {
      say(type + ": is there already, in " + one.folder.string());
      return meet();
    }
    create_folders(one.folder / "shards");
    const std::string identity = identity_of(type);
    one.shards.emplace(one.folder / "shards", std::stoull(identity, nullptr, 16), data_.samples(), one.metric->width());
    for (const std::string& needed : one.metric->needs()) one.metric->take_totals(needed, totals_of(needed));
    measure_shards(type, one);
    if (leads()) write_index(type, one, identity);
    meet();
  }

  void measure_shards(const std::string& type, Measurement& one) {
    const auto begun = std::chrono::steady_clock::now();
    const std::int64_t shards = one.shards->count(), ranks = ranks_.size();
    std::int64_t measured = 0;
    for (std::int64_t round = 0; round * ranks < shards; ++round) {
      const std::int64_t shard = round * ranks + ranks_.rank();
      if (shard < shards && !one.shards->is_done(shard)) {
        measure_shard(one, shard);
        ++measured;
      }
      meet();
      const std::int64_t done = std::min(shards, (round + 1) * ranks);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      const std::int64_t rounds_left = (shards - done + ranks - 1) / ranks;
      if (measured > 0 && rounds_left > 0) {
        say(type + ": " + grouped(done) + " of " + grouped(shards) + " shards, " +
            duration_text(seconds / static_cast<double>(round + 1) * static_cast<double>(rounds_left)) + " to go");
      }
    }
  }

  void measure_shard(Measurement& one, std::int64_t shard) {
    const bool sums = one.metric->width() > 0;
    std::vector<std::int64_t> numbers(one.shards->numbers_of(shard));
    const std::int64_t first = one.shards->first_sample(shard), count = one.shards->samples_of(shard);
    std::vector<std::int64_t> rows;
    for (std::int64_t at = 0; at < count; at += kRows) {
      rows.clear();
      for (std::int64_t i = at; i < std::min(at + kRows, count); ++i) rows.push_back(first + i);
      Batch batch = data_.read(rows);
      one.metric->measure(batch, rows.size(), numbers.data() + (sums ? 0 : at));
    }
    one.shards->write(shard, numbers);
  }

  std::vector<std::int64_t> totals_of(const std::string& type) const {
    const sdk::IndexedRows file((measurements_.at(type).folder / (type + "_metric_value")).string());
    return file.row(0);
  }

  void write_index(const std::string& type, Measurement& one, const std::string& identity) {
    if (one.metric->width() > 0) {
      write_metric_value(one.folder, type, summed(*one.shards));
    } else {
      write_metric_index(one.folder, type, *one.shards, data_.samples());
    }
    Json record = Json::object();
    record["identity"] = identity;
    record["fingerprint"] = data_.fingerprint();
    record["samples"] = data_.samples();
    record["sequence_length"] = data_.sequence_length();
    record["params"] = one.params;
    // Last: what has a record is whole.
    write_aside(record_of(type), [&](const fs::path& path) { write_file(path, record.dump() + "\n"); });
    one.shards->remove();
    say(type + ": written to " + one.folder.string());
  }

  const AnalyzeArguments& arguments_;
  const LoadedConfig& loaded_;
  Communicator& ranks_;
  Registry registry_;
  std::optional<Model> model_;
  Dataset data_;
  fs::path out_;
  std::optional<AnalysisLock> lock_;  // of rank 0
  std::map<std::string, Measurement> measurements_;
  std::vector<std::string> order_;  // of the metrics, those that others need first
  std::string needed_;              // " (total_vocab_freq, which vocab_rarity needs)": metrics that were not asked for
};

}  // namespace

int analyze(const AnalyzeArguments& arguments) {
  const LoadedConfig loaded = load_run(source_of(arguments.config), Purpose::kAnalysis);
  return run_as_one(loaded, [&] { return Analysis(arguments, loaded).run(); });
}

}  // namespace capstan::cli
