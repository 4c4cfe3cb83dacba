// The time of day is set while an elastic launch trains: nothing of it goes by it.

#include <gmock/gmock.h>

#include <cstdio>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/shifted_clock.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_THAT(result.out, HasSubstr("2 processes lost, "));
  const std::size_t lost = result.out.find("2 processes lost, ");
  ASSERT_NE(lost, std::string::npos);
  EXPECT_LT(std::atof(result.out.c_str() + lost + 10), kDay / 2);
}

TEST_F(ElasticClock, OfTwoHostsMayBeADayApart) {
  ShiftedClock clock(folder_ / "clock");
  clock.set_time_of_day(24 * 60 * 60);
  const std::string secret = "CAPSTAN_RDZV_SECRET=the secret of this test, longer than 32 characters";
  ElasticStart here{.program = {kCapstan}, .environment = {secret}, .own_memory = false}, ahead = here;
  for (const std::string& one : clock.environment()) ahead.environment.push_back(one);
  const std::vector<std::string> words = train("apart", kEndless),
                                 launch = {"--elastic", "2:2",    "-n",
                                           "1",         "--rdzv", "127.0.0.1:" + std::to_string(free_port())};
  ElasticRun first(folder_, launch, words, here), second(folder_, launch, words, ahead);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 10));
  for (ElasticRun* run : {&second, &first}) {
    run->send(SIGTERM);
    const ProcessResult result = run->wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("another secret")));
  }
}

}  // namespace
}  // namespace capstan::cli
