#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/errors.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

/// Engines with the sampler of data_efficiency; batches are given by hand.
class CurriculumRun : public ::testing::Test {
 protected:
  /// A metric that clusters nothing: lengths 4, 8, 12, 16 in steps 1 to 4.
  std::string section(const std::string& metric, int epochs = 1000) const {
    return R"("data_efficiency": {"enabled": true, "data_sampling": {"enabled": true, "num_epochs": )" +
           std::to_string(epochs) + R"(, "curriculum_learning": {"enabled": true, "data_cluster_path": ")" +
           (folder_ / "clusters").string() + R"(", "curriculum_metrics": {")" + metric +
           R"(": {"difficulty_type": "value", "clustering_type": "single_cluster", "min_difficulty": 4,
               "max_difficulty": 16, "schedule_type": "fixed_linear",
               "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 4}}}}}})";
  }
  static Numbers samples(ProbeRun& run) {
    const auto found = run.engine->step_samples();
    return {found.begin(), found.end()};
  }

  TemporaryFolder folder_;
};

TEST_F(CurriculumRun, CutsSamplesToTheDifficultyOfTheirStep) {
  ProbeRun run("", section("seqlen_truncate")), plain;
  run.engine->start_sampler(100);
  for (const std::int64_t length : {4, 8, 12, 16}) {
    samples(run);
    const std::int64_t index = run.engine->progress().global_steps % 2;
    const double wanted = plain.engine->train_batch([&] {
      Batch batch = plain.batch(index);
      for (auto& [name, tensor] : batch.tensors) tensor = tensor.narrow(1, 0, length).contiguous();
      return batch;
    });
    EXPECT_EQ(run.step(), wanted) << length;
  }
}

TEST_F(CurriculumRun, TakesACustomScheduleFromTheProgram) {
  std::string custom = section("seqlen_truncate");
  const auto at = custom.find("fixed_linear");
  custom.replace(at, custom.find("}}}}}}", at) + 1 - at, "custom\"");
  ProbeRun run("", custom), plain;
  run.engine->set_difficulty_schedule("seqlen_truncate", [](std::int64_t step) { return 3 + 4 * step; });
  run.engine->start_sampler(100);
  for (const std::int64_t length : {7, 11}) {
    samples(run);
    const double wanted = plain.engine->train_batch([&] {
      Batch batch = plain.batch(length == 7 ? 0 : 1);
      for (auto& [name, tensor] : batch.tensors) tensor = tensor.narrow(1, 0, length).contiguous();
      return batch;
    });
    EXPECT_EQ(run.step(), wanted) << length;
  }
}

TEST_F(CurriculumRun, FoldsSamplesIntoRowsOfTheDifficultyOfTheirStep) {
  ProbeRun run("", section("seqlen_reshape")), plain;
  run.engine->start_sampler(100);
  for (const std::int64_t length : {4, 8, 12, 16}) {
    samples(run);
    const std::int64_t index = run.engine->progress().global_steps % 2;
    const double wanted = plain.engine->train_batch([&] {
      Batch batch = plain.batch(index);
      // 16 tokens a row: 4, 2, 1 and 1 pieces of these lengths, and what remains of 12 is lost.
      for (auto& [name, tensor] : batch.tensors) {
        std::vector<torch::Tensor> rows;
        for (std::int64_t row = 0; row < 4; ++row) {
          for (std::int64_t piece = 0; piece < 16 / length; ++piece) {
            rows.push_back(tensor[row].narrow(0, piece * length, length));
          }
        }
        tensor = torch::stack(rows);
      }
      batch.tensors["sample_position"] = torch::arange(4 * (16 / length));
      return batch;
    });
    EXPECT_EQ(run.step(), wanted) << length;
  }
}

TEST_F(CurriculumRun, GivesTheSamplesOfAStepUntilItHasEnded) {
  ProbeRun run("", section("anything"));
  run.engine->start_sampler(100);
  EXPECT_TRUE(run.engine->has_sampler());
  const Numbers first = samples(run);
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(samples(run), first);
  run.step();
  const Numbers second = samples(run);
  EXPECT_NE(second, first);
  EXPECT_EQ(samples(run), second);
}

TEST_F(CurriculumRun, GoesOnWhereItWasSavedWhateverWasDrawnAhead) {
  for (const bool ahead : {false, true}) {
    for (const bool load_first : {false, true}) {
      ProbeRun straight("", section("anything")), resumed("", section("anything"));
      straight.engine->start_sampler(100);
      samples(straight);
      straight.step();
      if (ahead) samples(straight);
      straight.engine->save_checkpoint((folder_ / "ck").string());
      std::vector<Numbers> wanted, found;
      for (int i = 0; i < 3; ++i) {
        wanted.push_back(samples(straight));
        straight.step();
      }
      if (!load_first) {
        resumed.engine->start_sampler(100);
        samples(resumed);  // of another step
      }
      resumed.engine->load_checkpoint((folder_ / "ck").string());
      if (load_first) resumed.engine->start_sampler(100);
      for (int i = 0; i < 3; ++i) {
        found.push_back(samples(resumed));
        resumed.step();
      }
      EXPECT_EQ(found, wanted) << ahead << load_first;
    }
  }
}

TEST_F(CurriculumRun, EndsWhenTheDataIsUsedUp) {
  ProbeRun run("", section("anything", 2));
  run.engine->start_sampler(6);  // 12 samples in two passes: 3 steps of 4
  for (int i = 0; i < 3; ++i) {
    samples(run);
    run.step();
  }
  EXPECT_THAT(
      [&] { samples(run); },
      ThrowsMessage<RuntimeFault>("sampler 'curriculum': the data is used up: 3 steps of 4 samples are done, and "
                                  "2 passes over 6 samples have no whole batch left. Raise "
                                  "data_efficiency.data_sampling.num_epochs."));
}

TEST_F(CurriculumRun, SaysThatAProgramLeavesTheSamplerOut) {
  ProbeRun run("", section("anything"));
  ::testing::internal::CaptureStderr();
  run.steps(2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string wanted =
      "data_efficiency.data_sampling.curriculum_learning: the sampler 'curriculum' has no effect, because this program "
      "chooses samples itself. Call Engine::start_sampler(), and take those that Engine::step_samples() gives.";
  EXPECT_THAT(said, HasSubstr(wanted));
  EXPECT_EQ(said.find(wanted, said.find(wanted) + 1), std::string::npos) << "said twice";

  ProbeRun without;
  EXPECT_FALSE(without.engine->has_sampler());
  EXPECT_THAT([&] { samples(without); }, ThrowsMessage<RuntimeFault>(HasSubstr("the configuration names no sampler")));
}

TEST_F(CurriculumRun, RefusesSavedSamplesThatDoNotFit) {
  ProbeRun saved("", section("anything")), smaller("", section("anything"));
  saved.engine->start_sampler(100);
  samples(saved);
  saved.engine->save_checkpoint((folder_ / "ck").string());
  smaller.engine->start_sampler(1);
  EXPECT_THAT(
      [&] { smaller.engine->load_checkpoint((folder_ / "ck").string()); },
      ThrowsMessage<RuntimeFault>(HasSubstr("was saved with a step's samples drawn ahead, 4 of them, which do not "
                                            "fit train_batch_size 4 and a data set of 1 samples.")));
  EXPECT_THAT(samples(smaller), ElementsAre(0, 0, 0, 0));  // goes on
}

}  // namespace
}  // namespace capstan
