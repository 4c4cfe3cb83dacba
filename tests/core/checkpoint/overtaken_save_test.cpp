// Saves of an elastic run that a newer generation, or another run, overtakes before they are published.

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/elastic/save_fence.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

/// The phases of a save, in their order; what a process does in a phase is done once the phase's texts are gathered.
constexpr const char* kPhases[] = {"folder", "tensors", "state", "index", "place", "latest"};

class OvertakenSave : public ::testing::Test {
 protected:
  ~OvertakenSave() override { set_save_token({}); }

  static CheckpointContents of_value(double value) {
    CheckpointContents contents;
    contents.tensors.push_back({"w", "param", {2}, 0, at::full({2}, value)});
    return contents;
  }
  double saved(const std::string& tag) const {
    return read_checkpoint(folder_.path(), tag).tensors.at(0).values[0].item<double>();
  }
  void save(const SaveToken& token, const std::string& tag, double value) const {
    set_save_token(token);
    write_checkpoint(folder_.path(), tag, of_value(value));
  }
  /// A process of `token` stands still in its save, with this phase behind it, while `other` saves. What it throws when
  /// it wakes; empty: it ends its save.
  std::string save_overtaken(const SaveToken& token, const std::string& tag, const std::string& phase,
                             const std::function<void()>& other) const {
    const CheckpointRank rank{0, true, [&](const std::string& name, const std::string& text) {
                                if (name == "save_checkpoint, " + phase) other();
                                return std::vector<std::string>{text};
                              }};
    set_save_token(token);
    try {
      write_checkpoint(folder_.path(), tag, of_value(1), rank);
    } catch (const RuntimeFault& fault) {
      return fault.what();
    }
    return "";
  }
  bool is_there(const std::string& name) const { return std::filesystem::exists(folder_.path() / name); }

  TemporaryFolder folder_;
};

TEST_F(OvertakenSave, PublishesNothingWhereverANewerGenerationHasOvertakenIt) {
  const SaveToken older{"ab", 1, 4}, newer{"ab", 2, 3};
  for (const std::string phase : kPhases) {
    SCOPED_TRACE(phase);
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directory(folder_.path());
    save(older, "global_step10", 0);
    const std::string fault = save_overtaken(older, "global_step20", phase, [&] { save(newer, "global_step15", 2); });
    EXPECT_EQ(latest_tag(folder_.path()), "global_step15");
    EXPECT_EQ(saved("global_step15"), 2);
    EXPECT_EQ(saved("global_step10"), 0);
    const bool was_placed = phase == std::string("place") || phase == std::string("latest");
    EXPECT_EQ(is_there("global_step20"), was_placed);
    if (phase == std::string("latest")) {
      EXPECT_EQ(fault, "");
      continue;
    }
    EXPECT_THAT(fault, HasSubstr("checkpoints in '" + folder_.path().string() +
                                 "': generation 4 of this run may not save, because generation 3 has taken its "
                                 "place."));
  }
}

TEST_F(OvertakenSave, LeavesTheNewerGenerationsCheckpointOfItsOwnStepAlone) {
  const SaveToken older{"ab", 1, 4}, newer{"ab", 2, 3};
  for (const std::string phase : {"tensors", "state", "index"}) {
    const std::string fault = save_overtaken(older, "global_step20", phase, [&] { save(newer, "global_step20", 2); });
    EXPECT_THAT(fault, HasSubstr("generation 4 of this run may not save, because generation 3 has taken its place."));
    EXPECT_EQ(saved("global_step20"), 2) << phase;
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directory(folder_.path());
  }
}

TEST_F(OvertakenSave, MayNotBeginAgain) {
  const SaveToken older{"ab", 1, 4}, newer{"ab", 2, 3};
  save(newer, "global_step15", 2);
  EXPECT_THROW(save(older, "global_step20", 1), RuntimeFault);
  EXPECT_EQ(latest_tag(folder_.path()), "global_step15");
  EXPECT_FALSE(is_there("global_step20"));
}

TEST_F(OvertakenSave, DeletesNoCheckpointAfterwards) {
  const SaveToken older{"ab", 1, 4}, newer{"ab", 2, 3};
  const std::set<std::string> own = {"global_step10", "global_step20"};
  for (const std::string& tag : own) save(older, tag, 1);
  save(newer, "global_step30", 2);
  set_save_token(older);
  EXPECT_THROW(prune_checkpoints(folder_.path(), 1, own), RuntimeFault);
  for (const std::string& tag : own) EXPECT_TRUE(is_there(tag)) << tag;
  set_save_token(newer);
  prune_checkpoints(folder_.path(), 1, own);
  EXPECT_FALSE(is_there("global_step10"));
  EXPECT_TRUE(is_there("global_step20"));
}

TEST_F(OvertakenSave, IsRefusedWhereAnotherRunHasTakenTheFolder) {
  const std::string fault = save_overtaken({"ab", 1, 4}, "global_step20", "index", [&] {
    save({"cd", 1, 1}, "global_step1", 2);
  });
  EXPECT_THAT(fault, HasSubstr("another run saves there since. Give each run a folder of its own."));
  EXPECT_EQ(latest_tag(folder_.path()), "global_step1");
}

TEST_F(OvertakenSave, OfTheSameGenerationIsNotKeptOut) {
  const SaveToken token{"ab", 1, 4};
  save(token, "global_step10", 0);
  save(token, "global_step20", 1);
  EXPECT_EQ(latest_tag(folder_.path()), "global_step20");
  save({}, "global_step30", 3);  // a program that is not elastic
  EXPECT_EQ(latest_tag(folder_.path()), "global_step30");
}

}  // namespace
}  // namespace capstan
