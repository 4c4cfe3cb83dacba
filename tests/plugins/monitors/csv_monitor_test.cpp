#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <sstream>

#include "tests/plugins/monitors/monitor_plugin.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

class CsvMonitor : public test::MonitorPlugin {
 public:
  using Row = test::Row;
  explicit CsvMonitor(const std::filesystem::path& output_path, const Json& resumed_at = Json(),
                      const std::string& run = "")
      : MonitorPlugin("csv_monitor", params(output_path), run_info(resumed_at, run)) {}

 private:
  static Json params(const std::filesystem::path& output_path) {
    Json params;
    params["output_path"] = output_path.string();
    params["job_name"] = "job";
    return params;
  }
  static Json run_info(const Json& resumed_at, const std::string& run) {
    Json info;
    if (!run.empty()) info["run"] = run;
    info["resumed_at"] = resumed_at;
    return info;
  }
};

class CsvMonitorTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return read_bytes(folder_.path() / "job" / name); }
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(folder_ / "job");
    write_bytes(folder_.path() / "job" / name, text);
  }

  TemporaryFolder folder_;
};

TEST_F(CsvMonitorTest, WritesOneFileATagInDeepSpeedsLayout) {
  CsvMonitor monitor(folder_.path());
  monitor.write({{"Train/Samples/lr", 0.001, 32}, {"Train/Samples/train loss", 2.5, 32}});
  monitor.write({{"Train/Samples/lr", 0.002, 64}});

  EXPECT_EQ(file("Train_Samples_lr.csv"), "step,lr\r\n32,0.001\r\n64,0.002\r\n");
  EXPECT_EQ(file("Train_Samples_train_loss.csv"), "step,train loss\r\n32,2.5\r\n");
}

TEST_F(CsvMonitorTest, WritesValuesAsPythonDoes) {
  CsvMonitor monitor(folder_.path());
  const double tiny = std::numeric_limits<double>::denorm_min();
  monitor.write({{"v", 1.0, 1},
                 {"v", 0.0001, 2},
                 {"v", 0.00001, 3},
                 {"v", 1e15, 4},
                 {"v", 1e16, 5},
                 {"v", 1.0 / 3, 6},
                 {"v", -0.0, 7},
                 {"v", tiny, 8},
                 {"v", NAN, 9},
                 {"v", -INFINITY, 10},
                 {"v", 100000.0, 11},
                 {"v", 1.2345678901234568e+17, 12}});

  // repr() of Python 3.11 for each.
  EXPECT_EQ(file("v.csv"),
            "step,v\r\n1,1.0\r\n2,0.0001\r\n3,1e-05\r\n4,1000000000000000.0\r\n5,1e+16\r\n6,0.3333333333333333\r\n"
            "7,-0.0\r\n8,5e-324\r\n9,nan\r\n10,-inf\r\n11,100000.0\r\n12,1.2345678901234568e+17\r\n");
}

TEST_F(CsvMonitorTest, RowsAreInTheFileWhenWriteReturns) {
  CsvMonitor monitor(folder_.path());
  for (int i = 1; i <= 3; ++i) {
    monitor.write({{"loss", 0.5, i}});
    const std::string text = file("loss.csv");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), i + 1);
  }
}

TEST_F(CsvMonitorTest, WritesTheHeaderOnceOverAllRuns) {
  { CsvMonitor(folder_.path()).write({{"loss", 2.0, 8}}); }
  { CsvMonitor(folder_.path(), 8).write({{"loss", 1.0, 16}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,2.0\r\n16,1.0\r\n");
}

TEST_F(CsvMonitorTest, CutsRowsBeyondThePointWhereARunResumes) {
  put("loss.csv", "step,loss\r\n8,3.0\r\n16,2.0\r\n24,1.0\r\n");
  put("other.csv", "step,other\r\n16,1.0\r\n32,1.0\r\n");
  { CsvMonitor(folder_.path(), 16).write({{"loss", 1.5, 24}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,2.0\r\n24,1.5\r\n");
  EXPECT_EQ(file("other.csv"), "step,other\r\n16,1.0\r\n");
}

TEST_F(CsvMonitorTest, GetsNoRowsOfAnEarlierProcessOfTheRunThatWakes) {
  CsvMonitor earlier(folder_.path());
  earlier.write({{"loss", 3.0, 8}, {"loss", 2.0, 16}});
  CsvMonitor monitor(folder_.path(), 16);
  earlier.write({{"loss", 1.0, 24}});
  monitor.write({{"loss", 1.5, 24}});

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,2.0\r\n24,1.5\r\n");
}

TEST_F(CsvMonitorTest, KeepsAllRowsWhenARunDoesNotResume) {
  put("loss.csv", "step,loss\r\n8,3.0\r\n16,2.0\r\n");
  { CsvMonitor(folder_.path()).write({{"loss", 9.0, 8}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,2.0\r\n8,9.0\r\n");
}

TEST_F(CsvMonitorTest, GivesEachRunAFolderOfItsOwnInWhichItGoesOn) {
  { CsvMonitor(folder_.path(), {}, "a").write({{"loss", 3.0, 8}, {"loss", 2.0, 16}}); }
  { CsvMonitor(folder_.path(), {}, "b").write({{"loss", 5.0, 8}}); }
  { CsvMonitor(folder_.path(), {}, "c").write({{"loss", 6.0, 8}}); }
  { CsvMonitor(folder_.path(), 8, "a").write({{"loss", 1.0, 16}}); }
  std::filesystem::remove_all(folder_ / "job-2");
  { CsvMonitor(folder_.path(), 8, "c").write({{"loss", 7.0, 16}}); }
  { CsvMonitor(folder_.path(), 8, "d").write({{"loss", 8.0, 16}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,1.0\r\n");
  EXPECT_EQ(file("../job-3/loss.csv"), "step,loss\r\n8,6.0\r\n16,7.0\r\n");
  EXPECT_EQ(file("../job-2/loss.csv"), "step,loss\r\n16,8.0\r\n") << "the first that is free";
}

TEST_F(CsvMonitorTest, OfOneRunWritesAnewWhereItBeginsAnew) {
  { CsvMonitor(folder_.path(), {}, "a").write({{"loss", 3.0, 8}, {"loss", 2.0, 16}}); }
  { CsvMonitor(folder_.path(), {}, "a").write({{"loss", 4.0, 8}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,4.0\r\n");
}

TEST_F(CsvMonitorTest, LeavesMetricsOfReleasesWithoutMarksToTheRunThatIsResumed) {
  put("loss.csv", "step,loss\r\n8,3.0\r\n16,2.0\r\n");
  { CsvMonitor(folder_.path(), {}, "new").write({{"loss", 9.0, 8}}); }
  { CsvMonitor(folder_.path(), 8, "older").write({{"loss", 1.0, 16}}); }
  { CsvMonitor(folder_.path(), 8).write({{"loss", 7.0, 16}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,1.0\r\n");
  EXPECT_EQ(file("../job-2/loss.csv"), "step,loss\r\n8,9.0\r\n");
  EXPECT_EQ(file("../job-3/loss.csv"), "step,loss\r\n16,7.0\r\n") << "a run without a name, and all have owners";
}

TEST_F(CsvMonitorTest, TakesAFolderThatHoldsOtherFilesAlone) {
  put("notes.txt", "mine");
  { CsvMonitor(folder_.path(), {}, "a").write({{"loss", 3.0, 8}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n");
}

TEST_F(CsvMonitorTest, TakesOutALineThatWasCutOff) {
  put("loss.csv", "step,loss\r\n8,3.0\r\n16,2");
  { CsvMonitor(folder_.path(), 16).write({{"loss", 2.0, 16}}); }

  EXPECT_EQ(file("loss.csv"), "step,loss\r\n8,3.0\r\n16,2.0\r\n");
}

TEST_F(CsvMonitorTest, LeavesOtherFilesAlone) {
  put("notes.csv", "when,what\r\n99,party\r\n1");
  put("loss.txt", "step,loss\r\n99,1.0\r\n");
  { CsvMonitor(folder_.path(), 8).write({{"loss", 1.0, 8}}); }

  EXPECT_EQ(file("notes.csv"), "when,what\r\n99,party\r\n1");
  EXPECT_EQ(file("loss.txt"), "step,loss\r\n99,1.0\r\n");
}

TEST_F(CsvMonitorTest, QuotesNamesThatCsvWouldSplit) {
  CsvMonitor(folder_.path()).write({{"a/b,\"c\"", 1.0, 1}, {"größe", 2.0, 1}});

  EXPECT_EQ(file("a_b,\"c\".csv"), "step,\"b,\"\"c\"\"\"\r\n1,1.0\r\n");
  EXPECT_EQ(file("größe.csv"), "step,größe\r\n1,2.0\r\n");
}

/// Files may not grow beyond some bytes while this lives, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : before_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{bytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    ::signal(SIGXFSZ, before_);
  }

 private:
  sighandler_t before_;
  rlimit limit_{};
};

TEST_F(CsvMonitorTest, NamesTheFileThatItCannotWrite) {
  CsvMonitor monitor(folder_.path());
  const FullDisk full(20);

  EXPECT_THAT(
      [&] {
        monitor.write({{"loss", 1.0, 1}, {"loss", 1.0, 2}, {"loss", 1.0, 3}});
      },
      ThrowsMessage<PluginError>(StrEq("write: " + (folder_ / "job/loss.csv").string() + ": File too large.")));
}

TEST_F(CsvMonitorTest, SaysWhyItsFolderCannotBeMade) {
  write_bytes(folder_ / "job", "a file where the folder should be");

  EXPECT_THAT([&] { CsvMonitor monitor(folder_.path()); },
              ThrowsMessage<PluginError>(::testing::HasSubstr((folder_ / "job").string())));
}

TEST_F(CsvMonitorTest, WritesTextsAsJsonLines) {
  CsvMonitor monitor(folder_.path());
  monitor.text({{"Train/Samples/generated_1", "To \"be\"", " or\nnot \t\x01ü", 0, 0}});
  monitor.text({{"Train/Samples/generated_1", "", "x", 4, 32}, {"Train/Samples/generated_2", "a", "b", 4, 32}});

  const std::string text = file("samples.jsonl");
  const std::size_t end = text.find('\n');
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(Json::parse(text.substr(0, end)),
            Json::parse(R"({"step": 0, "samples": 0, "tag": "Train/Samples/generated_1", "prompt": "To \"be\"",
                            "text": " or\nnot \t\u0001ü"})"));
  EXPECT_EQ(text.substr(text.rfind('{')),
            "{\"step\": 4, \"samples\": 32, \"tag\": \"Train/Samples/generated_2\", \"prompt\": \"a\", \"text\": "
            "\"b\"}\n");
}

TEST_F(CsvMonitorTest, CutsTextsThatARunWritesAgain) {
  const auto texts = [this] {
    std::string steps;
    std::istringstream in(file("samples.jsonl"));
    for (std::string line; std::getline(in, line);) steps += Json::parse(line).at("text").as_string();
    return steps;
  };
  { CsvMonitor(folder_.path(), {}, "a").text({{"t", "", "a", 0, 0}, {"t", "", "b", 2, 16}, {"t", "", "c", 4, 32}}); }
  { CsvMonitor(folder_.path(), 16, "a").text({{"t", "", "d", 4, 32}}); }
  EXPECT_EQ(texts(), "abd");
  const std::string whole = file("samples.jsonl");
  put("samples.jsonl", whole + "{\"step\": 6, \"sam");
  { CsvMonitor(folder_.path(), 32, "a").text({{"t", "", "e", 6, 48}}); }
  EXPECT_EQ(texts(), "abde");
  { CsvMonitor(folder_.path(), {}, "a").text({{"t", "", "f", 0, 0}}); }
  EXPECT_EQ(texts(), "f") << "a run that begins anew";
}

TEST_F(CsvMonitorTest, LeavesAFileThatHoldsNoSamples) {
  const std::string data = "{\"text\": \"mine\"}\n{\"text\": \"cut";
  put("samples.jsonl", data);
  CsvMonitor monitor(folder_.path());
  EXPECT_THAT(
      [&] {
        monitor.text({{"t", "", "a", 0, 0}});
      },
      ::testing::ThrowsMessage<std::exception>(
          ::testing::HasSubstr("samples.jsonl: holds something else than samples of a run. Rename it,")));
  EXPECT_EQ(file("samples.jsonl"), data);
}

TEST_F(CsvMonitorTest, TakesAHundredThousandMetrics) {
  CsvMonitor monitor(folder_.path());
  std::vector<CsvMonitor::Row> rows;
  for (int i = 0; i < 100'000; ++i) rows.push_back({i % 2 ? "odd" : "even", 1.0 * i, i});
  monitor.write(rows);

  const std::string text = file("odd.csv");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 50'001);
  EXPECT_TRUE(text.ends_with("\r\n99999,99999.0\r\n"));
}

}  // namespace
}  // namespace capstan
