#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/elastic_run.hpp"

namespace capstan::cli {

inline constexpr std::int64_t kBatch = 12, kSamples = 100'000'000;
inline constexpr int kEndless = 1'000'000;  // steps

/// Elastic launches of a small model in a folder of their own, and what they have left there.
class Elastic : public ::testing::Test {
 protected:
  /// A configuration whose samples are logged in files called `log`. The batch is 12 for 1, 2, 3, 4, 6 and 12
  /// processes, and sample i is the i-th to be trained on.
  std::vector<std::string> train(const std::string& log, int steps, const std::vector<std::string>& more = {}) const {
    write_bytes(
        folder_ / (log + ".json"),
        R"({"elasticity": {"enabled": true, "max_train_batch_size": 12, "micro_batch_sizes": [1, 2, 3],
                      "min_time": 0, "version": 0.1, "ignore_non_elastic_batch_info": true},
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "steps_per_print": null,
                    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 20}},
                    "csv_monitor": {"enabled": true, "output_path": ".", "job_name": ")" +
            log + R"(-csv"},
                    "capstan": {"data": {"path": "data", "sequence_length": 8, "shuffle": false,
                      "dataset": {"type": "LoggedNumbers", "params": {"samples": )" +
            std::to_string(kSamples) + R"(, "log": ")" + log +
            R"("}}}, "model": {"type": "gpt", "params": {"layers": 2, "d": 16, "heads": 2, "seq": 8, "vocab": 17}},
                    "elastic": {"every": 7},
                    "plugins": {"path": ")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"}}})");
    write_bytes(folder_ / "data", "x");
    std::vector<std::string> words = {"--config", log + ".json", "--no-progress", "--steps", std::to_string(steps),
                                      "--save",   log + "-ck"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// What each file of the run's metrics holds, but for those about elasticity and time.
  std::map<std::string, std::string> metrics_of(const std::string& log) const {
    std::map<std::string, std::string> metrics;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / (log + "-csv"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("Train_Samples_")) metrics[name] = read_bytes(entry.path());
    }
    return metrics;
  }

  /// The values of a metric by sample.
  std::map<std::int64_t, double> values_of(const std::string& log, const std::string& metric) const {
    std::istringstream lines(read_bytes(folder_ / (log + "-csv") / (metric + ".csv")));
    std::string line;
    std::getline(lines, line);
    std::map<std::int64_t, double> values;
    while (std::getline(lines, line)) values[std::atoll(line.c_str())] = std::atof(line.c_str() + line.find(',') + 1);
    return values;
  }

  /// The files of the checkpoint at the end that hold values.
  std::map<std::string, std::string> values_saved(const std::string& log, int steps) const {
    std::map<std::string, std::string> files;
    const auto tag = folder_ / (log + "-ck") / ("global_step" + std::to_string(steps));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tag)) {
      const auto& path = entry.path();
      if (path.extension() == ".safetensors") files[path.filename().string()] = read_bytes(path);
    }
    return files;
  }

  /// Every step has trained on its own samples, each of them once: of each generation the steps count that the next one
  /// has not done again. `out` tells where each began.
  void expect_each_sample_once(const std::string& log, const std::string& out, int steps) const {
    std::map<std::int64_t, std::int64_t> begins = {{1, 0}};  // the first step of each generation
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
      long long generation = 0, step = 0;
      int processes = 0;
      if (std::sscanf(line.c_str(), "generation %lld: %d %*s %*s on from step %lld", &generation, &processes, &step) ==
          3)
        begins[generation] = step;
    }
    std::map<std::int64_t, std::map<std::int64_t, int>> read;  // by generation and sample
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(log + ".") || name == log + ".json") continue;
      std::istringstream all(read_bytes(entry.path()));
      std::int64_t generation = 0;
      for (std::string line; std::getline(all, line);) {
        if (line.starts_with("open ")) {
          generation = std::atoll(line.c_str() + 5);
          continue;
        }
        std::istringstream numbers(line);
        for (std::int64_t sample = 0; numbers >> sample;) ++read[generation][sample];
      }
    }
    for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
      const auto next = std::next(begin);
      const std::int64_t end = next == begins.end() ? steps : next->second;
      for (std::int64_t sample = begin->second * kBatch; sample < end * kBatch; ++sample) {
        ASSERT_EQ(read[begin->first][sample], 1) << "sample " << sample << " in generation " << begin->first;
      }
    }
  }

  /// Interrupts the run once it has gone on a little. Returns the step that it has saved.
  int end_of(const ElasticRun& run, const std::string& log) const {
    EXPECT_TRUE(run.await(run.step() + 10));
    run.send(SIGTERM);
    const auto latest = folder_ / (log + "-ck") / "latest";
    EXPECT_TRUE(eventually([&] { return run.has_ended(); }));  // saved more than once, perhaps
    return std::atoi(read_bytes(latest).c_str() + std::string("global_step").size());
  }

  /// Ends the run once it has gone on a little, and compares it with one of as many steps that nobody disturbs.
  ProcessResult end_and_compare(ElasticRun& run, const std::string& log, const std::string& processes,
                                const std::vector<std::string>& more = {}) const {
    const int steps = end_of(run, log);
    ProcessResult result = run.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    expect_each_sample_once(log, result.out, steps);
    ElasticRun straight(folder_, {"--elastic", processes + ":" + processes}, train("straight", steps, more));
    const ProcessResult plain = straight.wait();
    EXPECT_EQ(plain.exit_code, 0) << plain.err;
    EXPECT_THAT(plain.out, ::testing::HasSubstr("0 processes lost, 0.0 s lost, goodput 100.0 %"));
    expect_each_sample_once("straight", plain.out, steps);
    EXPECT_EQ(metrics_of(log), metrics_of("straight"));
    const auto saved = values_saved("straight", steps);
    EXPECT_FALSE(saved.empty());
    EXPECT_EQ(values_saved(log, steps), saved);
    return result;
  }

  TemporaryFolder folder_;
};

}  // namespace capstan::cli
