#include "core/comm/comms_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kMegabyte = 1024.0 * 1024.0;

TEST(Bandwidth, OfAnAllReduceIsThatOfDeepSpeedsOwnExample) {
  // Its documentation: 678.86 MB over 8 ranks in 1.23 ms.
  const Bandwidth rate = bandwidth_of("all_reduce", 678.86 * kMegabyte, 1.23, 8);
  EXPECT_NEAR(rate.algorithm, 9259.66, 0.2);
  EXPECT_NEAR(rate.bus, 8102.20, 0.2);
}

TEST(Bandwidth, FollowsTheFormulaOfEachCollective) {
  // 10^6 bytes in 1 ms are 8 Gbit/s.
  struct Case {
    const char* op;
    double algorithm, bus;
  };
  const Case cases[] = {{"all_reduce", 16, 12},      {"inference_all_reduce", 16, 12},
                        {"all_gather", 32, 24},      {"all_gather_into_tensor", 32, 24},
                        {"reduce_scatter", 32, 24},  {"reduce_scatter_tensor", 32, 24},
                        {"all_to_all_single", 8, 6}, {"broadcast", 8, 8},
                        {"all_gather_object", 8, 8}};
  for (const Case& one : cases) {
    const Bandwidth rate = bandwidth_of(one.op, 1e6, 1, 4);
    EXPECT_DOUBLE_EQ(rate.algorithm, one.algorithm) << one.op;
    EXPECT_DOUBLE_EQ(rate.bus, one.bus) << one.op;
  }
  EXPECT_EQ(bandwidth_of("all_reduce", 1e6, 0, 4).bus, 0);
}

TEST(TrimmedMean, DropsATenthAtEachEndRoundedHalfToEven) {
  EXPECT_EQ(trimmed_mean({}), 0);
  EXPECT_EQ(trimmed_mean({100, 1, 2, 3, -50}), 56.0 / 5);     // 0.5 -> 0
  EXPECT_EQ(trimmed_mean({100, 1, 2, 3, 4, -50}), 10.0 / 4);  // 0.6 -> 1
  std::vector<double> fifteen{1000, 1000, -1000, -1000};      // 1.5 -> 2
  for (int i = 0; i < 11; ++i) fifteen.push_back(i);
  EXPECT_EQ(trimmed_mean(fifteen), 5);
}

TEST(SizeText, IsThatOfDeepSpeed) {
  EXPECT_EQ(comms_size_text(0), "0B");
  EXPECT_EQ(comms_size_text(512), "512.0 B");
  EXPECT_EQ(comms_size_text(4096), "4.0 KB");
  EXPECT_EQ(comms_size_text(1600), "1.56 KB");
  EXPECT_EQ(comms_size_text(static_cast<std::uint64_t>(678.86 * kMegabyte)), "678.86 MB");
  EXPECT_EQ(comms_size_text(3ull << 50), "3.0 PB");
}

CommsLoggerConfig recording_all() {
  CommsLoggerConfig config;
  config.enabled = true;
  return config;
}

CommsLog::Call call_of(std::string_view op, std::uint64_t bytes, double milliseconds) {
  return {op, "reduce", bytes, /*sent=*/bytes / 2, milliseconds, /*ranks=*/8};
}

TEST(CommsLog, PrintsTheTableOfDeepSpeedsUsers) {
  CommsLog log;
  log.configure(recording_all(), nullptr);
  log.add(call_of("all_reduce", 1 << 20, 2));
  log.add(call_of("broadcast", 512, 1));
  for (int i = 0; i < 12; ++i) log.add(call_of("all_reduce", 4096, 0.25));
  EXPECT_EQ(log.summary(0, 8).text(),
            "Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     "
            "tput_avg (Gbps)     busbw_avg (Gbps)\n"
            "all_reduce\n"
            "                    4.0 KB              12                  3.00                0.25                "
            "0.26                0.23\n"
            "                    1.0 MB              1                   2.00                2.00                "
            "8.39                7.34\n"
            "broadcast\n"
            "                    512.0 B             1                   1.00                1.00                "
            "0.00                0.00");
}

TEST(CommsLog, ComparesWithTheFastestRankOfEachCall) {
  CommsLog log;
  log.configure(recording_all(), nullptr);
  log.add(call_of("all_reduce", 4096, 2));
  log.add(call_of("broadcast", 512, 1));
  log.add(call_of("all_reduce", 4096, 3));
  const CommsSummary summary = log.summary(1, 8, {0.5, 1, 3});
  ASSERT_EQ(summary.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(summary.rows[0].comm_ms, 3.5);
  EXPECT_DOUBLE_EQ(summary.rows[0].straggler_ms, 1.5);
  EXPECT_DOUBLE_EQ(summary.rows[0].average_straggler_ms, 0.75);
  EXPECT_DOUBLE_EQ(summary.rows[1].straggler_ms, 0);
  EXPECT_THAT(summary.text(),
              HasSubstr("Breakdown with straggler effect\n"
                        "-------------------------------\n"
                        "Comm. Op            Message Size        Count               Total comm lat(ms)  Total "
                        "straggler(ms) Avg comm lat(ms)    Avg straggler(ms)\n"
                        "all_reduce\n"
                        "                    4.0 KB              2                   3.50                1.50          "
                        "      1.75                0.75\n"));
  const Json json = summary.json();
  EXPECT_EQ(json.at("summary").at("all_reduce").at("4096").at("count"), Json(2));
  EXPECT_EQ(json.at("summary").at("all_reduce").at("4096").at("msg_size_str"), Json("4.0 KB"));
  EXPECT_EQ(json.at("straggler_analysis").at("all_reduce").at("4096").at("total_straggler_ms"), Json(1.5));
  EXPECT_EQ(json.at("metadata").at("world_size"), Json(8));
  EXPECT_TRUE(log.summary(1, 8).json().at("straggler_analysis").is_null());
}

TEST(CommsLog, RecordsTheOpsThatAreNamedAndCountsAll) {
  CommsLoggerConfig config = recording_all();
  config.prof_all = false;
  config.prof_ops = {"all_gather_into_tensor"};
  CommsLog log;
  log.configure(config, nullptr);
  log.add(call_of("all_gather", 4096, 2));
  log.add(call_of("broadcast", 512, 1));
  ASSERT_EQ(log.summary(0, 2).rows.size(), 1u);
  EXPECT_EQ(log.summary(0, 2).rows[0].op, "all_gather");
  EXPECT_EQ(log.traffic().at("broadcast").calls, 1u);
  EXPECT_EQ(log.total().bytes, 2048u + 256u);
  EXPECT_DOUBLE_EQ(log.total().milliseconds, 3);

  log.record_ops({"broadcast"}, true);
  log.record_ops({"all_gather"}, false);
  log.reset();
  log.add(call_of("all_gather", 4096, 2));
  log.add(call_of("broadcast", 512, 1));
  EXPECT_EQ(log.recorded_calls(), 1u);
  log.record_all(true);
  log.add(call_of("all_gather", 4096, 2));
  log.record_all(false);
  log.record_ops({"broadcast"}, false);
  log.add(call_of("broadcast", 512, 1));
  EXPECT_THAT(log.times(), ElementsAre(1, 2));
}

TEST(CommsLog, IsReadWhileAnotherThreadAdds) {
  CommsLog log;
  log.configure(recording_all(), nullptr);
  constexpr int kCalls = 5000;
  std::thread adds([&] {
    for (int i = 0; i < kCalls; ++i) log.add(call_of("op" + std::to_string(i % 500), 512, 1));
  });
  std::uint64_t seen = 0;
  while (seen < kCalls) {
    const std::uint64_t now = log.total().calls;
    EXPECT_GE(now, seen);
    seen = now;
    EXPECT_LE(log.traffic().size(), 500u);
    EXPECT_LE(log.summary(0, 2, log.times()).rows.size(), 500u);
  }
  adds.join();
  EXPECT_EQ(log.recorded_calls(), kCalls);
}

TEST(CommsLog, ComparesNoCallsThatCameAfterTheOthersTimes) {
  CommsLog log;
  log.configure(recording_all(), nullptr);
  log.add(call_of("broadcast", 512, 3));
  const std::vector<double> fastest = {1};
  log.add(call_of("broadcast", 512, 5));
  const CommsRow row = log.summary(0, 2, fastest).rows.at(0);
  EXPECT_EQ(row.count, 2u);
  EXPECT_DOUBLE_EQ(row.comm_ms, 1);
  EXPECT_DOUBLE_EQ(row.straggler_ms, 2);
}

TEST(CommsLog, RecordsNothingWhileItIsOff) {
  CommsLoggerConfig config = recording_all();
  config.enabled = false;
  config.prof_ops = {"broadcast"};
  CommsLog log;
  log.configure(config, nullptr);
  log.add(call_of("broadcast", 512, 1));
  EXPECT_EQ(log.recorded_calls(), 0u);
}

TEST(CommsLog, PrintsEachCallWhenVerboseAndItsCallerWhenAsked) {
  CommsLoggerConfig config = recording_all();
  config.verbose = true;
  std::vector<std::string> lines;
  CommsLog log;
  log.configure(config, [&](const std::string& line) { lines.push_back(line); });
  log.add(call_of("all_reduce", 711'836'467, 1.23));
  config.debug = true;
  log.configure(config, [&](const std::string& line) { lines.push_back(line); });
  log.add(call_of("broadcast", 512, 1));
  EXPECT_THAT(lines,
              ElementsAre("comm op: all_reduce | time (ms): 1.23 | msg size: 678.86 MB | algbw (Gbps): 9259.66 | "
                          "busbw (Gbps): 8102.20",
                          "comm op: broadcast | [Caller Func: reduce] | time (ms): 1.00 | msg size: 512.0 B | algbw "
                          "(Gbps): 0.00 | busbw (Gbps): 0.00"));
  EXPECT_EQ(log.summary(0, 8).rows[1].op, "broadcast | [Caller Func: reduce]");
}

}  // namespace
}  // namespace capstan
