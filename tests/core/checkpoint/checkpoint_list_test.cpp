// Lists of checkpoints, which of them go, comparisons, and looking at all bytes.

#include "core/checkpoint/checkpoint_list.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/checkpoint/checkpoint_diff.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/checkpoint_verify.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/damage.hpp"
#include "tests/core/checkpoint/sample_checkpoint.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::sample_checkpoint;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;

void write_steps(const fs::path& dir, const std::vector<int>& steps) {
  for (const int step : steps) write_checkpoint(dir, "global_step" + std::to_string(step), sample_checkpoint(step));
}

std::vector<std::string> tags_of(const std::vector<ListedCheckpoint>& list) {
  std::vector<std::string> tags;
  for (const ListedCheckpoint& one : list) tags.push_back(one.tag);
  return tags;
}

/// Makes the state of a checkpoint unreadable.
void damage(const fs::path& folder) { fs::resize_file(folder / "state.json", 3); }

TEST(ListCheckpoints, GivesStepSizeAndWhatIsWhole) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {20, 3, 100});
  note_best(folder.path(), "global_step20");
  damage(folder / "global_step3");
  fs::create_directory(folder / ".global_step101.partial-123");
  const CheckpointList list = list_checkpoints(folder.path());

  EXPECT_THAT(tags_of(list.checkpoints), ElementsAre("global_step3", "global_step20", "global_step100"));
  EXPECT_THAT(list.unfinished, ElementsAre("global_step101"));
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder / "global_step20")) bytes += entry.file_size();
  const ListedCheckpoint &damaged = list.checkpoints[0], &best = list.checkpoints[1], &latest = list.checkpoints[2];
  EXPECT_EQ(best.bytes, bytes);
  EXPECT_EQ(best.step, 20);
  EXPECT_EQ(best.writer, "Capstan");
  EXPECT_TRUE(best.is_best && !best.is_latest && latest.is_latest && !latest.is_best);
  EXPECT_EQ(best.defect, "");
  EXPECT_THAT(damaged.defect, HasSubstr("global_step3/state.json': it has 3 bytes"));
  EXPECT_EQ(damaged.step, 3);
}

TEST(ListCheckpoints, NamesALatestThatIsNoTagAndAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1});
  folder.write("latest", "../elsewhere");
  EXPECT_THAT(list_checkpoints(folder.path()).defect, HasSubstr("the file 'latest' does not hold a checkpoint's name"));
  EXPECT_THROW(list_checkpoints(folder / "none"), RuntimeFault);
}

TEST(PlanPrune, KeepsTheFurthestWholeOnesAndThoseThatAreNamed) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1, 2, 3, 4, 5, 6});
  write_checkpoint(folder.path(), "mine", sample_checkpoint(0));
  note_best(folder.path(), "global_step2");
  write_latest(folder.path(), "global_step1", folder.path());
  damage(folder / "global_step5");
  const PrunePlan plan = plan_prune(list_checkpoints(folder.path()), 2);
  EXPECT_THAT(tags_of(plan.doomed), ElementsAre("global_step3"));
  EXPECT_THAT(plan.spared, ElementsAre(Pair("global_step1", "latest"), Pair("global_step2", "best")));

  prune_listed(folder.path(), plan);
  EXPECT_THAT(tags_of(list_checkpoints(folder.path()).checkpoints),
              ElementsAre("mine", "global_step1", "global_step2", "global_step4", "global_step5", "global_step6"));
  EXPECT_THAT(unfinished_names(folder.path()), IsEmpty());
}

TEST(PlanPrune, DeletesNothingWhereNothingIsWhole) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1, 2, 3});
  for (const char* tag : {"global_step1", "global_step2", "global_step3"}) damage(folder / tag);
  fs::remove(folder / "latest");
  EXPECT_THAT(plan_prune(list_checkpoints(folder.path()), 1).doomed, IsEmpty());
}

TEST(PlanPrune, RefusesWhereTheFileBestNamesNothing) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1, 2, 3});
  const PrunePlan plan = plan_prune(list_checkpoints(folder.path()), 1);
  folder.write("best", "");
  EXPECT_THAT([&] { plan_prune(list_checkpoints(folder.path()), 1); },
              ThrowsMessage<RuntimeFault>(
                  AllOf(HasSubstr("the file 'best' does not hold a checkpoint's name."),
                        HasSubstr(" Nothing is deleted, because the file may name a checkpoint that has to stay."))));
  EXPECT_THAT([&] { prune_listed(folder.path(), plan); },
              ThrowsMessage<RuntimeFault>(HasSubstr(" 'global_step1' stays.")));
  EXPECT_THAT(tags_of(list_checkpoints(folder.path()).checkpoints),
              ElementsAre("global_step1", "global_step2", "global_step3"));
}

TEST(PlanPrune, TakesAFolderThatIsCalledBestForACheckpoint) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "best", sample_checkpoint(7));
  write_steps(folder.path(), {1, 2});
  const CheckpointList list = list_checkpoints(folder.path());
  EXPECT_EQ(list.defect, "");
  EXPECT_THAT(tags_of(plan_prune(list, 1).doomed), ElementsAre("global_step1"));
}

TEST(PruneListed, DeletesWhatItHasRenamedWhereALaterCheckpointStays) {
  for (const char* file : {"latest", "latest_universal", "best"}) {
    const TemporaryFolder folder;
    write_steps(folder.path(), {1, 2, 3});
    const PrunePlan plan = plan_prune(list_checkpoints(folder.path()), 1);
    folder.write(file, "global_step2");
    EXPECT_THAT([&] { prune_listed(folder.path(), plan); },
                ThrowsMessage<RuntimeFault>(HasSubstr("'global_step2' has become the latest or the best one")));
    EXPECT_THAT(tags_of(list_checkpoints(folder.path()).checkpoints), ElementsAre("global_step2", "global_step3"));
    EXPECT_THAT(unfinished_names(folder.path()), IsEmpty());
  }
}

TEST(PruneListed, RefusesWhatHasBecomeTheLatestSince) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1, 2, 3});
  const PrunePlan plan = plan_prune(list_checkpoints(folder.path()), 1);
  write_latest(folder.path(), "global_step1", folder.path());
  EXPECT_THROW(prune_listed(folder.path(), plan), RuntimeFault);
  EXPECT_THAT(tags_of(list_checkpoints(folder.path()).checkpoints),
              ElementsAre("global_step1", "global_step2", "global_step3"));
}

TEST(PruneListed, RefusesWhileAnotherProcessSaves) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {1, 2});
  const PrunePlan plan = plan_prune(list_checkpoints(folder.path()), 1);
  {
    const FolderLock save(folder.path());
    EXPECT_THROW(prune_listed(folder.path(), plan), RuntimeFault);
  }
  EXPECT_THAT(tags_of(list_checkpoints(folder.path()).checkpoints), ElementsAre("global_step1", "global_step2"));
}

TEST(TrainerFolder, IsListedByItsOwnStepAndItsBestStays) {
  const TemporaryFolder folder;
  for (const int step : {2, 10, 30}) {
    const std::string name = "checkpoint-" + std::to_string(step);
    folder.write(name + "/trainer_state.json", R"({"global_step": )" + std::to_string(step) +
                                                   R"(, "epoch": 0.5, "best_model_checkpoint": "out/checkpoint-2",
                                                   "log_history": [{"loss": NaN, "text": "\"NaN\\"}, {"loss": -Infinity}]})");
  }
  write_checkpoint(folder / "checkpoint-30", "global_step30", sample_checkpoint(30));
  const CheckpointList list = list_checkpoints(folder.path());
  EXPECT_THAT(tags_of(list.checkpoints), ElementsAre("checkpoint-2", "checkpoint-10", "checkpoint-30"));
  EXPECT_TRUE(list.checkpoints[0].is_best);
  EXPECT_EQ(list.checkpoints[2].writer, "transformers, Capstan");
  EXPECT_THAT(tags_of(plan_prune(list, 1).doomed), ElementsAre("checkpoint-10"));
  EXPECT_EQ(read_trainer_state(folder / "checkpoint-10")->epoch, 0.5);

  damage(folder / "checkpoint-30/global_step30");
  EXPECT_THAT(list_checkpoints(folder.path()).checkpoints[2].defect, HasSubstr("state.json"));
  folder.write("checkpoint-2/trainer_state.json", "{\"global_step\": \"two\"}");
  EXPECT_THAT(list_checkpoints(folder.path()).checkpoints[0].defect,
              HasSubstr("trainer_state.json': global_step must be a number of steps, and is \"two\""));
  folder.write("checkpoint-10/model.safetensors", "half");
  EXPECT_THAT(list_checkpoints(folder.path()).checkpoints[1].defect, HasSubstr("checkpoint-10/model.safetensors'"));
}

TEST(VerifyCheckpoint, ReadsEveryByteAndNamesTheFileThatIsDamaged) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {4});
  const VerifiedCheckpoint verified = verify_checkpoint(folder.path(), "global_step4");
  EXPECT_EQ(verified.files, 3);
  EXPECT_EQ(verified.tensors, 5);
  test::damage(folder / "global_step4", 0, "layer.weight", "exp_avg");
  // A list reads no values.
  EXPECT_EQ(list_checkpoints(folder.path()).checkpoints.front().defect, "");
  try {
    verify_checkpoint(folder.path(), "global_step4");
    FAIL() << "the damage is not found";
  } catch (const RuntimeFault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("rank_00000.safetensors'"));
  }
}

TEST(CompareCheckpoints, FindsWhatDiffersHoweverTensorsAreCut) {
  CheckpointContents a = sample_checkpoint(1), b = sample_checkpoint(1);
  // The tensor of ten elements in other parts.
  const at::Tensor values = at::arange(4, at::kDouble).add(1), more = at::arange(6, at::kDouble).add(1);
  b.tensors[4].values = values.narrow(0, 0, 3);
  b.tensors[5] = {"", "flat", {10}, 3, at::cat({values.narrow(0, 3, 1), more})};
  EXPECT_TRUE(compare_checkpoints(a, b).equal());
  EXPECT_EQ(compare_checkpoints(a, b).equal_tensors, 5);

  b.tensors[5].values[2] = 2.5;  // 2 on the other side
  b.tensors[2].values = b.tensors[2].values.to(at::kFloat);
  b.state["global_steps"] = 2;
  b.state["config"]["seed"] = 7;
  a.tensors.push_back({"", "generator of rank 1", {4}, 0, at::arange(4, at::kByte)});
  a.tensors.push_back({"layer.more", "param", {4}, 0, at::arange(4, at::kFloat)});
  const CheckpointDiff diff = compare_checkpoints(a, b);
  EXPECT_FALSE(diff.equal());
  EXPECT_EQ(diff.equal_tensors, 4);
  ASSERT_EQ(diff.tensors.size(), 1u);
  EXPECT_EQ(diff.tensors[0].differing, 1);
  EXPECT_EQ(diff.tensors[0].elements, 10);
  EXPECT_DOUBLE_EQ(diff.tensors[0].largest_absolute, 0.5);
  EXPECT_DOUBLE_EQ(diff.tensors[0].largest_relative, 0.5 / 2.5);
  EXPECT_THAT(diff.only_a, ElementsAre("param of 'layer.more'"));
  EXPECT_THAT(diff.only_b, IsEmpty());
  ASSERT_EQ(diff.counters.size(), 1u);
  EXPECT_EQ(diff.counters[0].path, "global_steps");
  ASSERT_EQ(diff.settings.size(), 1u);
  EXPECT_EQ(diff.settings[0].path, "config.seed");
  EXPECT_EQ(diff.settings[0].b, Json(7));
}

TEST(CompareCheckpoints, TellsShapesAndNumbersThatAreNotFinite) {
  const CheckpointContents a = sample_checkpoint(1);
  CheckpointContents b = sample_checkpoint(1, /*rows=*/2);
  EXPECT_EQ(compare_checkpoints(a, b).tensors.front().elements, 0);
  b = sample_checkpoint(1);
  b.tensors[1].values = b.tensors[1].values.clone();
  b.tensors[1].values[3] = std::numeric_limits<float>::quiet_NaN();
  CheckpointDiff diff = compare_checkpoints(a, b);
  ASSERT_EQ(diff.tensors.size(), 1u);
  EXPECT_EQ(diff.tensors[0].largest_absolute, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(compare_checkpoints(b, b).equal());
}

TEST(CompareCheckpoints, TellsIntegersApartThatDoubleRounds) {
  CheckpointContents a = sample_checkpoint(1), b = sample_checkpoint(1);
  const std::int64_t large = std::int64_t{1} << 53;
  a.tensors[3].values = at::full({1}, large, at::kLong);
  b.tensors[3].values = at::full({1}, large + 1, at::kLong);
  const CheckpointDiff diff = compare_checkpoints(a, b);
  ASSERT_EQ(diff.tensors.size(), 1u);
  EXPECT_EQ(diff.tensors[0].differing, 1);
  EXPECT_EQ(diff.tensors[0].largest_absolute, 1);
}

TEST(CheckpointName, TakesTheFolderOfATagForTheTag) {
  const TemporaryFolder folder;
  write_steps(folder.path(), {4});
  const std::string dir = folder.path().string();
  EXPECT_EQ(CheckpointName::parse(dir).tag, "");
  const CheckpointName name = CheckpointName::parse(dir + "/global_step4/");
  EXPECT_EQ(name.dir, dir);
  EXPECT_EQ(name.tag, "global_step4");
}

}  // namespace
}  // namespace capstan
