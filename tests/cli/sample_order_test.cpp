// Which sample stands where in training, by a log that the data set writes: real processes.

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "capstan/sdk/indexed_file.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/hash_uniform.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 200, kBatch = 24;

/// The sample of each position of a run, and how often it was read.
using Order = std::map<std::int64_t, std::int64_t>;

class SampleOrder : public ::testing::Test {
 protected:
  SampleOrder() {
    write_bytes(folder_ / "data", "x");
    for (const char* metric : {"len", "voc"}) write_metric(metric);
  }

  void write_metric(const std::string& name) const {
    const std::vector<float> uniform = testing::hash_uniform(name, kSamples, 1);
    std::map<std::int64_t, std::vector<std::int64_t>> by_value;
    for (std::size_t i = 0; i < uniform.size(); ++i) {
      by_value[static_cast<std::int64_t>(uniform[i] * 10 + 11)].push_back(static_cast<std::int64_t>(i));
    }
    sdk::IndexedWriter samples((folder_ / (name + "_samples")).string(), sdk::IndexedType::kU16);
    sdk::IndexedWriter values((folder_ / (name + "_values")).string(), sdk::IndexedType::kU8);
    for (const auto& [value, members] : by_value) {
      samples.append(members);
      samples.end_row();
      values.append(std::vector<std::int64_t>{value});
      values.end_row();
    }
    samples.finish();
    values.finish();
  }

  static std::string metric(const std::string& name, const std::string& type, int from, int to) {
    return "\"" + name + R"(": {"index_to_sample_path": ")" + name + R"(_samples", "index_to_metric_path": ")" + name +
           R"(_values", "difficulty_type": ")" + type +
           R"(", "clustering_type": "schedule_based", "min_difficulty": )" + std::to_string(from) +
           R"(, "max_difficulty": )" + std::to_string(to) +
           R"(, "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 8, "difficulty_step": 1}})";
  }

  /// A configuration whose log is `log`.
  void write_config(const std::string& log, const std::string& metrics, int accumulation) const {
    write_bytes(
        folder_ / (log + ".json"),
        R"({"train_batch_size": )" + std::to_string(kBatch) + R"(, "gradient_accumulation_steps": )" +
            std::to_string(accumulation) +
            R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.01}}, "steps_per_print": null,
                    "data_efficiency": {"enabled": true, "seed": 5, "data_sampling": {"enabled": true,
                      "curriculum_learning": {"enabled": true, "data_cluster_path": "clusters", "curriculum_metrics": {)" +
            metrics + R"(}}}},
                    "capstan": {"data": {"path": "data", "sequence_length": 4,
                      "dataset": {"type": "LoggedNumbers", "params": {"samples": )" +
            std::to_string(kSamples) + R"(, "log": ")" + log +
            R"("}}}, "model": {"type": "gpt", "params": {"layers": 1, "d": 8, "heads": 1, "seq": 4, "vocab": 17}},
                    "plugins": {"path": ")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"}}})");
  }

  ProcessResult train(const std::string& log, int world, std::vector<std::string> more) const {
    std::vector<std::string> words = {"train", "--config", log + ".json", "--no-progress"};
    if (world > 1) words.insert(words.begin(), {"launch", "-n", std::to_string(world)});
    words.insert(words.end(), more.begin(), more.end());
    ProcessOptions options;
    options.environment = {"OMP_NUM_THREADS=1"};
    return run_capstan(folder_, words, options);
  }

  /// Adds what a run of `world` processes that began at `step` has read since the logs were last taken, and fails where
  /// a position has another sample than before.
  void take_log(Order& order, const std::string& log, int world, int accumulation, std::int64_t step) const {
    const std::int64_t rows = kBatch / world / accumulation;
    for (int rank = 0; rank < world; ++rank) {
      const auto path = folder_ / (log + "." + std::to_string(rank));
      std::istringstream in(read_bytes(path));
      std::filesystem::remove(path);
      std::string line;
      for (std::int64_t micro = 0; std::getline(in, line);) {
        if (line == "open") continue;
        std::istringstream numbers(line);
        std::int64_t sample = 0, row = 0;
        while (numbers >> sample) {
          const std::int64_t position = step * kBatch + (micro * world + rank) * rows + row++;
          const auto [found, fresh] = order.emplace(position, sample);
          ASSERT_EQ(found->second, sample) << "position " << position;
        }
        ++micro;
      }
    }
  }

  TemporaryFolder folder_;
};

struct Shape {
  int world, accumulation;
};

TEST_F(SampleOrder, IsTheSameForAnyNumberOfProcessesAndMicroBatches) {
  const bool whole = std::getenv("CAPSTAN_TEST_ALL") != nullptr;
  std::vector<Shape> shapes = {{2, 2}, {3, 4}, {4, 1}};
  if (whole) shapes = {{1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {3, 1}, {3, 2}, {3, 4}, {4, 1}, {4, 2}};
  const std::string value = metric("len", "value", 4, 21), percentile = metric("len", "percentile", 10, 50),
                    two = value + ", " + metric("voc", "value", 9, 21);
  for (const std::string& metrics : whole ? std::vector{value, percentile, two} : std::vector{two}) {
    write_config("straight", metrics, 1);
    const ProcessResult plain = train("straight", 1, {"--steps", "10"});
    ASSERT_EQ(plain.exit_code, 0) << plain.err;
    Order wanted;
    take_log(wanted, "straight", 1, 1, 0);
    ASSERT_EQ(wanted.size(), static_cast<std::size_t>(10 * kBatch));
    for (const Shape shape : shapes) {
      SCOPED_TRACE(std::to_string(shape.world) + " processes, accumulation " + std::to_string(shape.accumulation));
      write_config("other", metrics, shape.accumulation);
      const ProcessResult run = train("other", shape.world, {"--steps", "10"});
      ASSERT_EQ(run.exit_code, 0) << run.err;
      Order found;
      take_log(found, "other", shape.world, shape.accumulation, 0);
      EXPECT_EQ(found, wanted);
    }
  }
}

TEST_F(SampleOrder, IsTheSameAfterKillsAndOnOtherNumbersOfProcesses) {
  const char* given = std::getenv("CAPSTAN_TEST_KILLS");
  const int kills = given ? std::atoi(given) : 3, steps = 4 * (kills + 1);
  const std::string two = metric("len", "value", 4, 21) + ", " + metric("voc", "percentile", 20, 50);
  write_config("straight", two, 1);
  ASSERT_EQ(train("straight", 1, {"--steps", std::to_string(steps)}).exit_code, 0);
  Order wanted, found;
  take_log(wanted, "straight", 1, 1, 0);

  std::vector<std::string> resume;
  std::int64_t step = 0;
  for (int run = 0; run <= kills; ++run) {
    const int world = 1 + run % 3, accumulation = 1 << run % 3;
    SCOPED_TRACE("run " + std::to_string(run) + " from step " + std::to_string(step));
    write_config("killed", two, accumulation);
    std::vector<std::string> words = {"--steps", std::to_string(steps),     "--save", "ck",
                                      "--set",   "capstan.run.save_every=1"};
    words.insert(words.end(), resume.begin(), resume.end());
    if (run < kills) {
      // The data set of the last rank kills its process while it reads the samples of a step.
      const int reads = (2 + run % 3) * accumulation;
      words.insert(words.end(), {"--set", "capstan.data.dataset.params.kill_at=" + std::to_string(reads)});
    }
    const ProcessResult result = train("killed", world, words);
    ASSERT_EQ(result.exit_code == 0, run == kills) << result.err;
    take_log(found, "killed", world, accumulation, step);
    const std::string latest = read_bytes(folder_ / "ck/latest");
    step = std::atoll(latest.substr(std::string("global_step").size()).c_str());
    resume = {"--resume", "ck"};
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(step, steps);
}

TEST_F(SampleOrder, IsRefusedByAllProcessesWhereOneCannotHaveIt) {
  write_bytes(folder_ / "clusters", "a file, where the first process makes a folder");
  write_config("log", metric("len", "value", 4, 21), 1);
  const ProcessResult result = train("log", 2, {"--steps", "2"});
  EXPECT_NE(result.exit_code, 0);
  const std::string wanted = "sampler 'curriculum': data_cluster_path 'clusters': cannot be written: ";
  EXPECT_THAT(result.err, HasSubstr("capstan: error: " + wanted));
  EXPECT_THAT(result.err, HasSubstr("capstan: [rank 1] error: rank 0: " + wanted));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("collective")));  // nobody has begun to train
}

TEST_F(SampleOrder, EndsBeforeItBeginsWhereTheDataWillNotDo) {
  write_config("log", metric("len", "value", 4, 21), 1);
  const auto train_passes = [&](const char* passes) {
    return train("log", 1,
                 {"--steps", "9", "--set", std::string("data_efficiency.data_sampling.num_epochs=") + passes});
  };
  EXPECT_THAT(
      train_passes("1").err,
      HasSubstr("data_efficiency.data_sampling.num_epochs: 1 passes over 200 samples are 8 steps of 24 samples, and "
                "capstan.run.steps is 9. Allow more passes, or take fewer steps."));
  EXPECT_EQ(train_passes("2").exit_code, 0);
  EXPECT_EQ(train_passes("9223372036854775807").exit_code, 0);
}

}  // namespace
}  // namespace capstan::cli
