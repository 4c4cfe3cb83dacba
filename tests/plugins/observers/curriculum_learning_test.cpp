#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"
#include "core/registry/host.hpp"
#include "core/text/json.hpp"
#include "plugins/data/common/difficulty_schedule.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using data::DifficultySchedule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

DifficultySchedule schedule(const Json& config, DifficultySchedule::Custom custom = {}) {
  static const capstan_host host = make_host();
  const std::string text = config.dump();
  capstan_error error;
  return DifficultySchedule(sdk::Document(&host, as_str(text), &error), "", std::move(custom));
}

Numbers difficulties(const std::string& config, std::int64_t from, std::int64_t to) {
  DifficultySchedule made = schedule(Json::parse(config));
  Numbers out;
  for (std::int64_t step = from; step <= to; ++step) out.push_back(made.update(step));
  return out;
}

TEST(DifficultySchedule, HasTheGoldenValues) {
  const auto linear = [](const std::string& limits) {
    return "{" + limits + R"(, "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 10,
            "difficulty_step": 8}})";
  };
  EXPECT_THAT(difficulties(linear(R"("min_difficulty": 8, "max_difficulty": 1024)"), 0, 10),
              ElementsAre(8, 104, 208, 312, 408, 512, 616, 712, 816, 920, 1024));
  EXPECT_THAT(difficulties(linear(R"("min_difficulty": 8, "max_difficulty": 64)"), 0, 11),
              ElementsAre(8, 8, 16, 24, 24, 32, 40, 40, 48, 56, 64, 64));
  // Never below the minimum, which is no multiple of the step, and beyond the end until the maximum is reached.
  EXPECT_THAT(difficulties(linear(R"("min_difficulty": 12, "max_difficulty": 60)"), 0, 12),
              ElementsAre(12, 16, 16, 24, 24, 32, 40, 40, 48, 48, 56, 60, 60));
  EXPECT_THAT(difficulties(R"({"min_difficulty": 8, "max_difficulty": 64, "schedule_type": "fixed_root",
                               "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8, "root_degree": 2}})",
                           0, 11),
              ElementsAre(8, 24, 32, 32, 40, 40, 48, 48, 56, 56, 64, 64));
}

TEST(DifficultySchedule, TakesRootsOfAnyDegreeAbove0) {
  for (const double degree : {0.25, 0.5, 0.75, 1.0, 1.5, 2.5}) {
    const Numbers made = difficulties(R"({"min_difficulty": 16, "max_difficulty": 128, "schedule_type": "fixed_root",
      "schedule_config": {"total_curriculum_step": 50, "difficulty_step": 8, "root_degree": )" +
                                          std::to_string(degree) + "}}",
                                      0, 60);
    for (std::int64_t step = 0; step <= 60; ++step) {
      // Platanios et al. 2019, equation 7, down to a multiple of difficulty_step.
      const double share = std::pow(static_cast<double>(step) / 50, 1 / degree);
      const auto length = static_cast<std::int64_t>(std::floor(16 + 112 * share)) / 8 * 8;
      EXPECT_EQ(made[static_cast<std::size_t>(step)], std::min<std::int64_t>(length, 128)) << degree << " " << step;
    }
  }
}

TEST(DifficultySchedule, IsThePeersWhereTheMinimumIsAMultipleOfTheStep) {
  const Json recorded =
      Json::parse(read_bytes(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/observers/curriculum_schedules.json"));
  std::size_t compared = 0;
  for (const Json& one : recorded.at("cases").as_array()) {
    const Json& config = one.at("config");
    const std::int64_t minimum = config.at("min_difficulty").as_integer();
    DifficultySchedule made = schedule(config, [](std::int64_t step) { return 30 - step; });
    for (std::size_t i = 0; i < one.at("steps").size(); ++i) {
      const std::int64_t wanted = one.at("difficulty").as_array()[i].as_integer();
      ASSERT_EQ(made.update(one.at("steps").as_array()[i].as_integer()), std::max(wanted, minimum))
          << one.at("name").as_string() << " " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, 500u);
}

std::string section(const std::string& schedule) {
  return R"("curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 4,
            "max_difficulty": 16, )" +
         schedule + "}";
}

const std::string kLinear = section(
    R"("schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 4})");
/// Steps 1 to 6 of it: floor(s / 4 * 12 + 4), down to a multiple of 4.
const Numbers kLengths = {4, 8, 12, 16, 16, 16};

/// A batch cut by hand.
Batch cut(Batch batch, std::int64_t length) {
  for (auto& [name, tensor] : batch.tensors) tensor = tensor.narrow(1, 0, length).contiguous();
  return batch;
}

TEST(CurriculumLearning, TrainsOnTheFirstTokensOfEachSample) {
  ProbeRun run("", kLinear), plain;
  for (std::size_t step = 0; step < kLengths.size(); ++step) {
    const double wanted = plain.engine->train_batch(
        [&] { return cut(plain.batch(static_cast<std::int64_t>(step) % 2), kLengths[step]); });
    EXPECT_EQ(run.step(), wanted) << step;
  }
  EXPECT_TRUE(run.parameter("head.weight").equal(plain.parameter("head.weight")));
}

TEST(CurriculumLearning, EvaluatesOnWholeSamples) {
  ProbeRun run("", kLinear), plain;
  const auto evaluate = [](ProbeRun& one) { return one.engine->eval_batch([&] { return one.batch(7); }, 1); };
  EXPECT_EQ(evaluate(run), evaluate(plain));
}

TEST(CurriculumLearning, GoesOnWhereItWasSaved) {
  const TemporaryFolder folder;
  ProbeRun straight("", kLinear), resumed("", kLinear);
  straight.steps(2);
  straight.engine->save_checkpoint(folder.path().string());
  const std::vector<double> wanted = straight.steps(3);
  resumed.engine->load_checkpoint(folder.path().string());

  EXPECT_EQ(resumed.steps(3), wanted);
}

TEST(CurriculumLearning, TakesACustomScheduleFromTheProgram) {
  ProbeRun run("", section(R"("schedule_type": "custom")")), plain;
  run.engine->set_difficulty_schedule("seqlen", [](std::int64_t step) { return step < 2 ? 1 : 100; });
  // Kept between the minimum and the maximum.
  for (const std::int64_t length : {4, 16}) {
    const std::int64_t index = length == 4 ? 0 : 1;
    const double wanted = plain.engine->train_batch([&] { return cut(plain.batch(index), length); });
    EXPECT_EQ(run.step(), wanted) << length;
  }
}

TEST(CurriculumLearning, RefusesACustomScheduleThatNobodyGives) {
  ProbeRun run("", section(R"("schedule_type": "custom")"));
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<ConfigError>(HasSubstr(
                                       "the schedule of 'seqlen' is \"custom\", and nothing says its "
                                       "difficulty. Call Engine::set_difficulty_schedule(\"seqlen\", function)")));
}

}  // namespace
}  // namespace capstan
