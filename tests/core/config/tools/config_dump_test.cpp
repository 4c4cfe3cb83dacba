#include "core/config/tools/config_dump.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string dump(const std::string& text, const ConfigContext& context) {
  const ConfigReading reading = read_config({text, "test.json", false}, context, all_components());
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) ADD_FAILURE() << problem.text("test.json");
  }
  return reading.config ? config_dump(*reading.config) : "";
}

TEST(ConfigDump, ShowsEveryValueWithItsOrigin) {
  ConfigContext context;
  context.world_size = 4;
  context.overrides.emplace_back("gradient_clipping", Json(0.5));
  context.program_values.emplace_back("optimizer.params.lr", Json(0.25));
  const std::string text = dump(R"({"train_batch_size": 8, "wall_clock_breakdown": true,
    "optimizer": {"type": "adam", "params": {"lr": "auto"}}, "comet": {"api_key": "secret"}})",
                                context);

  const auto line = [](const std::string& path, const std::string& value) {
    return "\n  " + path + " " + std::string(60 - path.size(), '.') + " " + value + "\n";
  };
  EXPECT_THAT(text, HasSubstr(line("train_batch_size", "8  (file)")));
  EXPECT_THAT(text, HasSubstr(line("train_micro_batch_size_per_gpu", "2  (derived)")));
  EXPECT_THAT(text, HasSubstr(line("gradient_clipping", "0.5  (command line)")));
  EXPECT_THAT(text, HasSubstr(line("optimizer.params.lr", "0.25  (program)")));
  EXPECT_THAT(text, HasSubstr(line("optimizer.params.eps", "1e-08  (default)")));
  EXPECT_THAT(text, HasSubstr(line("fp16.initial_scale_power", "16  (default)")));
  EXPECT_THAT(text, HasSubstr(line("zero_optimization.overlap_comm", "false  (derived)")));
  EXPECT_THAT(text, HasSubstr(line("comet.api_key", "(not shown)  (file)")));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace capstan::testing
