#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/plugins/schedulers/schedule_under_test.hpp"

namespace capstan::testing {
namespace {

Json read(const std::string& run) {
  std::ifstream file(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/schedulers/recorded/" + run + ".json");
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str());
}

const std::map<std::string, std::string> kPlugins = {{"WarmupLR", "warmup_lr"},
                                                     {"WarmupDecayLR", "warmup_decay_lr"},
                                                     {"WarmupCosineLR", "warmup_cosine_lr"},
                                                     {"LRRangeTest", "lr_range_test"},
                                                     {"OneCycle", "one_cycle"}};

class RecordedSchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(RecordedSchedule, IsRepeatedToTheLastBit) {
  const Json run = read(GetParam());
  const Json& optimizer = run.at("optimizer").at("params");
  const std::string& type = run.at("scheduler").at("type").as_string();
  const Json* betas = optimizer.find("betas");
  std::optional<ScheduleUnderTest::Betas> configured;
  if (betas != nullptr) configured = {betas->as_array()[0].as_number(), betas->as_array()[1].as_number()};
  const ScheduleUnderTest schedule(kPlugins.at(type), type, run.at("scheduler").at("params").dump(),
                                   {optimizer.at("lr").as_number()}, configured);

  const auto& rates = run.at("lr").as_array();
  ASSERT_EQ(rates.size(), 50u);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_EQ(schedule.rate(static_cast<std::int64_t>(i)), rates[i].as_number()) << "update " << i;
    if (!configured) continue;
    EXPECT_EQ(schedule.betas(static_cast<std::int64_t>(i)).first, run.at("mom").as_array()[i].as_number())
        << "update " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, RecordedSchedule,
                         ::testing::Values("base-z0", "sched-adamw-cosine-log", "sched-adamw-decay-linear",
                                           "sched-adamw-lrrange", "sched-adamw-onecycle", "sched-adamw-warmup-log",
                                           "sched-sgd-decay-linear"));

}  // namespace
}  // namespace capstan::testing
