// Which segments stay until which instant, and what is sent of a damaged one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "core/elastic/snapshot_folder.hpp"
#include "tests/core/keep/snapshot_worlds.hpp"

namespace capstan {
namespace {

using test::in_worlds;
using test::MixedRun;
using test::shared;
using test::TemporaryFolder;
using test::TogetherRun;
using testing::HasSubstr;

std::string config_of(int ranks, int stage) {
  return R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
         "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}}";
}

/// Member and step of each sealed segment.
using Held = std::set<std::pair<std::string, std::int64_t>>;
Held held(const std::filesystem::path& folder) {
  Held all;
  for (const SealedSegment& segment : SnapshotFolder(folder, 999, 1).find().segments) {
    all.emplace(segment.path().stem().string(), segment.facts().step);
  }
  return all;
}

/// Flips a bit in the middle of the data of the segment of that step.
void damage(const std::filesystem::path& folder, std::int64_t step) {
  for (const SealedSegment& segment : SnapshotFolder(folder, 999, 1).find().segments) {
    if (segment.facts().step != step) continue;
    const std::byte* middle = segment.data().data() + segment.data().size() / 2;
    std::fstream file(segment.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(middle - segment.bytes().data());
    file.put(static_cast<char>(std::to_integer<int>(*middle) ^ 1));
    return;
  }
  FAIL() << "no segment of step " << step;
}

void step_and_begin_snapshot(MixedRun& run, SnapshotFolder& folder) {
  run.steps(1);
  run.engine.begin_snapshot(folder);
  run.engine.finish_snapshot();
}

TEST(SnapshotUpkeep, WritesOverADamagedSnapshotRatherThanTheOneThatWasLoaded) {
  const TemporaryFolder place;
  {
    SnapshotFolder folder(place.path(), 10, 1);
    MixedRun run(config_of(1, 0), Communicator::alone());
    for (int i = 0; i < 2; ++i) step_and_begin_snapshot(run, folder);
  }
  damage(place.path(), 2);
  SnapshotFolder folder(place.path(), 10, 2);
  MixedRun run(config_of(1, 0), Communicator::alone());
  ASSERT_TRUE(run.engine.load_snapshot(folder).has_value());
  ASSERT_EQ(run.engine.progress().global_steps, 1);
  run.steps(1);
  step_and_begin_snapshot(run, folder);  // of step 3, which no step has confirmed yet
  EXPECT_EQ(held(place.path()), (Held{{"member-10", 1}, {"member-10", 3}}));
}

TEST(SnapshotUpkeep, RemovesWhatAMemberThatIsGoneHasLeftOnceASnapshotWithoutItIsWhole) {
  const TemporaryFolder place;
  {
    SnapshotFolder folder(place.path(), 10, 1);
    MixedRun run(config_of(1, 0), Communicator::alone());
    for (int i = 0; i < 2; ++i) step_and_begin_snapshot(run, folder);
  }
  SnapshotFolder folder(place.path(), 30, 2);
  MixedRun run(config_of(1, 0), Communicator::alone());
  ASSERT_TRUE(run.engine.load_snapshot(folder).has_value());
  // The first snapshots of the new member cannot be written.
  const std::filesystem::path segment = place / "member-30.0";
  std::filesystem::create_directory(segment);
  for (int i = 0; i < 3; ++i) {
    step_and_begin_snapshot(run, folder);
    EXPECT_EQ(held(place.path()), (Held{{"member-10", 2}})) << i;
  }
  std::filesystem::remove(segment);
  step_and_begin_snapshot(run, folder);  // of step 6: written, and no step has confirmed it
  EXPECT_EQ(held(place.path()), (Held{{"member-10", 2}, {"member-30", 6}}));
  step_and_begin_snapshot(run, folder);
  EXPECT_EQ(held(place.path()), (Held{{"member-30", 6}, {"member-30", 7}}));
}

/// At stage 2 each rank takes its own shard. Here every rank holds the other's part, so that only the rank that
/// receives the values reads them.
TEST(SnapshotUpkeep, ADamagedPartIsFoundByTheRankThatItIsSentTo) {
  const auto folder_of = [](const std::string& folder, int rank) { return folder + "/" + std::to_string(rank); };
  const auto loads = [=](Communicator& ranks, const std::string& folder, bool expected) {
    SnapshotFolder swapped(folder_of(folder, 1 - ranks.rank()), 20 + ranks.rank(), 2);
    TogetherRun run(config_of(2, 2), shared(ranks));
    testing::internal::CaptureStderr();
    EXPECT_EQ(run.engine.load_snapshot(swapped).has_value(), expected);
    const std::string told = testing::internal::GetCapturedStderr();
    if (!expected && ranks.rank() == 0) {
      EXPECT_THAT(told, HasSubstr("is damaged: it does not match its checksum. The snapshot of step 1 is not used."));
    }
    ranks.all_gather_text("test: loaded", "");
  };
  in_worlds({{2,
              [=](Communicator& ranks, const std::string& folder) {
                SnapshotFolder own(folder_of(folder, ranks.rank()), 10 + ranks.rank(), 1);
                TogetherRun run(config_of(2, 2), shared(ranks));
                step_and_begin_snapshot(run, own);
                ranks.all_gather_text("test: saved", "");
              }},
             {2, [=](Communicator& ranks, const std::string& folder) {
                loads(ranks, folder, true);
                if (ranks.rank() == 0) damage(folder_of(folder, 1), 1);
                ranks.all_gather_text("test: damaged", "");
                loads(ranks, folder, false);
              }}});
}

}  // namespace
}  // namespace capstan
