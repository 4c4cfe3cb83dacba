#include "core/engine/offload_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace capstan {
namespace {

TEST(OffloadMetrics, TellMegabytesAndMillisecondsOfTheStepAlone) {
  std::vector<Metric> metrics{{"Train/Samples/lr", 0.5, 32}};
  const OffloadTraffic before{5 << 20, 1 << 20, 2.0, 3}, now{17 << 20, (3 << 20) + (1 << 19), 2.25, 9};
  add_offload_metrics(metrics, before, now, 32);

  std::vector<std::tuple<std::string, double, std::int64_t>> rows;
  for (const Metric& metric : metrics) rows.emplace_back(metric.tag, metric.value, metric.x);
  EXPECT_THAT(rows, testing::ElementsAre(std::tuple("Train/Samples/lr", 0.5, 32),
                                         std::tuple("Train/Samples/offload_mb_read", 12.0, 32),
                                         std::tuple("Train/Samples/offload_mb_written", 2.5, 32),
                                         std::tuple("Train/Samples/offload_wait_ms", 250.0, 32)));
}

TEST(OffloadMetrics, AreNotThereWithoutOffload) {
  std::vector<Metric> metrics;
  add_offload_metrics(metrics, {}, {}, 32);
  EXPECT_THAT(metrics, testing::IsEmpty());
}

}  // namespace
}  // namespace capstan
