// What `capstan launch --elastic` refuses before it starts anything.

#include <gmock/gmock.h>

#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

class ElasticLimits : public Elastic {
 protected:
  std::string error_of(const std::vector<std::string>& launch, const std::vector<std::string>& more) const {
    const ProcessResult result = ElasticRun(folder_, launch, train("refused", 10, more)).wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
    return result.err;
  }
  static std::vector<std::string> set(const std::vector<std::string>& values) {
    std::vector<std::string> words;
    for (const std::string& value : values) words.insert(words.end(), {"--set", value});
    return words;
  }
};

TEST_F(ElasticLimits, ProcessesThatDoNotFillNodesAreRefusedWithWhatToDo) {
  const auto nodes = set({"elasticity.version=0.2", "elasticity.num_gpus_per_node=2"});
  EXPECT_THAT(
      error_of({"--elastic", "1:4", "-n", "3"}, nodes),
      HasSubstr(
          "launch: 3 processes do not fill nodes of 2 (elasticity.num_gpus_per_node), and version 0.2 of "
          "elasticity counts whole nodes. Start 2 or 4 (-n, --elastic), or set elasticity.num_gpus_per_node to 1, "
          "or elasticity.version to 0.1."));
  EXPECT_THAT(
      error_of({"--elastic", "1:1"}, nodes),
      HasSubstr("launch: 1 process does not fill nodes of 2 (elasticity.num_gpus_per_node), and version 0.2 of "
                "elasticity counts whole nodes. Start 2 (-n, --elastic), or set elasticity.num_gpus_per_node to 1, or "
                "elasticity.version to 0.1."));
}

TEST_F(ElasticLimits, WholeNodesAloneAreStartedWhereNobodySaysHowMany) {
  ElasticRun run(folder_, {"--elastic", "1:3"},
                 train("nodes", 3, set({"elasticity.version=0.2", "elasticity.num_gpus_per_node=2"})));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 processes"));
}

TEST_F(ElasticLimits, MinTimeCountsWholeMinutes) {
  EXPECT_THAT(error_of({"--elastic", "1:2"}, set({"elasticity.min_time=0.5"})),
              HasSubstr("elasticity.min_time: must be an integer"));
  EXPECT_THAT(error_of({"--elastic", "1:2"}, set({"elasticity.min_time=-1"})),
              HasSubstr("elasticity.min_time: must be at least 0, got -1."));
}

TEST_F(ElasticLimits, ASectionThatIsNotThereIsNamed) {
  EXPECT_THAT(error_of({"--elastic", "1:2"}, set({"elasticity=null", "train_batch_size=12"})),
              HasSubstr("elasticity.enabled: must be true for an elastic batch"));
}

}  // namespace
}  // namespace capstan::cli
