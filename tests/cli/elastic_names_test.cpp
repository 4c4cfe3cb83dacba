// Elastic launches where name servers do not answer: c10d asks for the name of each address that it connects to.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ElasticNames : public Elastic {
 protected:
  ElasticStart with_slow_names(const std::vector<std::string>& more) const {
    ElasticStart start{.environment = {"LD_PRELOAD=" CAPSTAN_TEST_SLOW_NAMES}};
    start.environment.insert(start.environment.end(), more.begin(), more.end());
    return start;
  }
};

TEST_F(ElasticNames, OfAddressesAreNotAskedFor) {
  const auto asked = folder_ / "asked";
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("quiet", 20),
                 with_slow_names({"CAPSTAN_TEST_NAMES_ASKED=" + asked.string()}));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(std::filesystem::exists(asked)) << read_bytes(asked);
}

// Rank 1 connects to it for the third time, for its watchdog, and does not ask meanwhile whether the run has gone on.
TEST_F(ElasticNames, AreNoReasonToWaitForRankZeroOnceItIsGone) {
  const auto slow = folder_ / "slow";
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("gone", 20),
                 with_slow_names({"CAPSTAN_TEST_NAMES_SLOW=" + slow.string(), "CAPSTAN_TEST_NAMES_MEMBER=1"}));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(slow) && read_bytes(slow) == "name\nname\nname\n"; }));
  ASSERT_GT(run.kill_rank(0), 0);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 process lost, ")) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("lost their connection")));
}

}  // namespace
}  // namespace capstan::cli
