// curriculum_start [SAMPLES]: how long the sampler `curriculum` takes to look at an index for the first time, and
// to open one that it has seen before and draw a batch, and what memory the process itself needs meanwhile. CPU
// milliseconds; ends with 1 where the second is above 50, or the memory grows by more than 64 MB and a bit a sample.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "capstan/sdk/permutation.hpp"
#include "core/data/sampler.hpp"
#include "core/engine/initialize.hpp"

namespace {

constexpr std::int64_t kValues = 1000;
constexpr double kOpenMs = 50;

double cpu_ms() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Bytes of this process's own.
double anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atof(line.c_str() + 8);
  }
  return 0;
}

/// An index of `samples` samples in a random order, as many of each value.
void write_index(const std::filesystem::path& folder, std::int64_t samples) {
  using namespace capstan::sdk;
  IndexedWriter rows((folder / "x_index_to_sample").string(), IndexedType::kU32);
  IndexedWriter values((folder / "x_index_to_metric").string(), IndexedType::kU16);
  const KeyedPermutation order(static_cast<std::uint64_t>(samples), 7);
  std::vector<std::int64_t> row;
  for (std::int64_t value = 0; value < kValues; ++value) {
    row.clear();
    for (std::int64_t place = value * samples / kValues; place < (value + 1) * samples / kValues; ++place) {
      row.push_back(static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place))));
    }
    rows.append(row);
    rows.end_row();
    values.append(std::vector<std::int64_t>{value});
    values.end_row();
  }
  rows.finish();
  values.finish();
}

/// CPU milliseconds from nothing to the first batch.
double open_and_draw(const std::filesystem::path& folder, std::int64_t samples) {
  using namespace capstan;
  const PluginIndex plugins = PluginIndex::scan();
  Registry registry(plugins);
  const std::string path = folder.string();
  const Json params = Json::parse(
      R"({"data_cluster_path": ")" + path + R"(/clusters", "curriculum_metrics": {"x": {
        "index_to_sample_path": ")" +
      path + R"(/x_index_to_sample", "index_to_metric_path": ")" + path +
      R"(/x_index_to_metric", "difficulty_type": "value", "clustering_type": "schedule_based", "min_difficulty": 1,
        "max_difficulty": 1000, "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 1000, "difficulty_step": 1}}}})");
  Sampler sampler(registry.create("bench", "sampler", "curriculum", params, model_host()));
  const double begun = cpu_ms();
  sampler.start({.samples = samples, .fingerprint = "", .batch = 256, .seed = 1, .passes = 0});
  sampler.of_step(0);
  return cpu_ms() - begun;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t samples = argc > 1 ? std::atoll(argv[1]) : 100'000'000;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("capstan-curriculum-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  write_index(folder, samples);
  const double first = open_and_draw(folder, samples), before = anonymous_bytes();
  const double again = open_and_draw(folder, samples), grown = anonymous_bytes() - before;
  std::filesystem::remove_all(folder);
  const double allowed = 64e6 + static_cast<double>(samples) / 8;
  std::printf(
      "%lld samples: looked at in %.0f ms, opened again and a batch drawn in %.2f ms (at most %.0f); %.1f MB more (at "
      "most %.1f)\n",
      static_cast<long long>(samples), first, again, kOpenMs, grown / 1e6, allowed / 1e6);
  return again <= kOpenMs && grown <= allowed ? 0 : 1;
}
