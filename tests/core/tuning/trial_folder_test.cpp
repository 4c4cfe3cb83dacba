#include "core/tuning/trial_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrialFolder : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) const { std::ofstream(folder_.path() / name) << text; }
  TrialOutcome judge(const TrialResult& result) const {
    TrialCommand command;
    command.err = folder_.path() / "stderr.log";
    return judge_trial(result, folder_.path(), command);
  }
  TrialResult measured() const {
    TrialResult result;
    result.end = TrialEnd::kMeasured;
    return result;
  }
  TemporaryFolder folder_;
};

TEST_F(TrialFolder, KeepsAnOutcome) {
  TrialOutcome outcome;
  outcome.outcome = "ok";
  outcome.latency = 0.125;
  outcome.throughput = 64;
  outcome.peak_bytes = 1'000'000;
  write_outcome(folder_.path(), outcome);
  const auto read = read_outcome(folder_.path());
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->ok());
  EXPECT_DOUBLE_EQ(read->latency, 0.125);
  EXPECT_EQ(read->peak_bytes, 1'000'000);
}

TEST_F(TrialFolder, HasNoOutcomeOfATrialThatWasInterrupted) {
  EXPECT_FALSE(read_outcome(folder_.path()));
  TrialOutcome outcome;
  outcome.outcome = "interrupted";
  write_outcome(folder_.path(), outcome);
  EXPECT_FALSE(read_outcome(folder_.path()));
  write(kOutcomeFile, "{\"outcome\": \"ok\"");  // cut off
  EXPECT_FALSE(read_outcome(folder_.path()));
}

TEST_F(TrialFolder, RefusesMetricsThatAreMissingOrNoNumbers) {
  EXPECT_THAT(judge(measured()).reason, HasSubstr("metrics.json cannot be read"));
  for (const char* text : {"{}", "{\"latency\": null, \"throughput\": 1}", "{\"latency\": 0, \"throughput\": 1}",
                           "{\"latency\": -5, \"throughput\": 1}", "{\"latency\": \"NaN\", \"throughput\": 1}"}) {
    write(kMetricsFile, text);
    const TrialOutcome outcome = judge(measured());
    EXPECT_EQ(outcome.outcome, "failed") << text;
    EXPECT_THAT(outcome.reason, HasSubstr("no number above 0")) << text;
  }
}

TEST_F(TrialFolder, TakesTheSentenceThatSaysWhy) {
  write("stderr.log",
        "capstan: warning: something\ncapstan: error: data/: no file in it.\n"
        "capstan: error: rank 0 ended with exit code 1; the others are ended.\n");
  EXPECT_EQ(failure_sentence(folder_.path() / "stderr.log"), "data/: no file in it.");
  write("stderr.log", "Traceback\n  File x\nValueError: no\n\n");
  EXPECT_EQ(failure_sentence(folder_.path() / "stderr.log"), "ValueError: no");
  EXPECT_EQ(failure_sentence(folder_.path() / "nowhere"), "");
}

TEST_F(TrialFolder, KnowsMemoryByItsWords) {
  TrialResult result;
  result.exit_code = 1;
  write("stderr.log", "capstan: error: out of memory, or of what 'ulimit' lets this process have.\n");
  EXPECT_EQ(judge(result).outcome, "out of memory");
  write("stderr.log", "");
  EXPECT_EQ(judge(result).reason, "ended with exit code 1 and wrote nothing about it.");
}

TEST_F(TrialFolder, GroupsFailuresByTheirReasons) {
  TrialOutcome ok, data, memory;
  ok.outcome = "ok";
  data.outcome = "failed";
  data.reason = "no data.";
  memory.outcome = "out of memory";
  memory.reason = "too large.";
  EXPECT_THAT(grouped_failures({{"a", ok}, {"b", memory}, {"c", data}, {"d", data}}),
              ElementsAre("2 trials failed (c, ...): no data.", "1 trial ran out of memory (b): too large."));
}

TEST_F(TrialFolder, SaysWhichFileCannotBeWritten) {
  EXPECT_THROW(write_outcome(folder_.path() / "no", {}), RuntimeFault);
}

}  // namespace
}  // namespace capstan::testing
