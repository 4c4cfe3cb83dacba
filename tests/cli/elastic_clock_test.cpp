// The time of day is set while an elastic launch trains: nothing of it goes by it.

#include <gmock/gmock.h>

#include <cstdio>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/shifted_clock.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

using ElasticClock = Elastic;

TEST_F(ElasticClock, SetForwardAndBackByADayChangesNothing) {
  constexpr std::int64_t kDay = 24 * 60 * 60;
  ShiftedClock clock(folder_ / "clock");
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("clock", kEndless),
                 {.environment = clock.environment()});
  ASSERT_TRUE(run.await_waiting(1));
  std::int64_t generation = 1;
  for (const std::int64_t shift : {kDay, -kDay}) {
    ASSERT_TRUE(run.await(run.step() + 10));
    clock.set_time_of_day(shift);
    ASSERT_TRUE(run.await(run.step() + 10));
    ASSERT_EQ(run.world()->generation, generation);  // nobody took the day for silence
    run.kill_rank(static_cast<std::size_t>(generation % 2));
    clock.set_time_of_day(0);  // while the others regroup
    ASSERT_TRUE(run.await(0, ++generation));
    clock.set_time_of_day(shift);
  }
  const ProcessResult result = end_and_compare(run, "clock", "2");
  EXPECT_THAT(result.out, HasSubstr("2 losses, "));
  const std::size_t lost = result.out.find("2 losses, ");
  ASSERT_NE(lost, std::string::npos);
  EXPECT_LT(std::atof(result.out.c_str() + lost + 10), kDay / 2);
}

}  // namespace
}  // namespace capstan::cli
