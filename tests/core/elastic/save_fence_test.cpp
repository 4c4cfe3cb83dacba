#include "core/elastic/save_fence.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::read_bytes;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SaveFenceTest : public ::testing::Test {
 protected:
  /// What is written aside in the fence moves to its place. Whether it could.
  bool publish(const SaveToken& token, const std::string& name) const {
    std::error_code error;
    const auto fence = folder_.path() / (".run-" + token.run + "-" + std::to_string(token.term) + "-" +
                                         std::to_string(token.generation));
    std::filesystem::rename(fence / name, folder_.path() / "latest", error);
    return !error;
  }
  void write(const SaveToken& token, const std::string& name) const {
    std::ofstream(enter_save_fence(folder_.path(), token) / name) << name;
  }
  std::string latest() const { return read_bytes(folder_.path() / "latest"); }

  TemporaryFolder folder_;
};

TEST_F(SaveFenceTest, AnOlderGenerationThatHasWrittenEverythingCannotPublishAfterANewerOneHasEntered) {
  write({"ab", 1, 4}, "old");
  write({"ab", 1, 5}, "new");
  EXPECT_TRUE(publish({"ab", 1, 5}, "new"));
  EXPECT_FALSE(publish({"ab", 1, 4}, "old"));
  EXPECT_EQ(latest(), "new");
  EXPECT_THAT(
      [&] {
        check_save_fence(folder_.path(), {"ab", 1, 4});
      },
      ThrowsMessage<RuntimeFault>(HasSubstr("checkpoints in '" + folder_.path().string() +
                                            "': generation 4 of this run may not save, because generation 5 "
                                            "has taken its place.")));
  EXPECT_THROW(enter_save_fence(folder_.path(), {"ab", 1, 4}), RuntimeFault);
}

TEST_F(SaveFenceTest, ALaterTermGoesBeforeAGreaterGeneration) {
  write({"ab", 1, 9}, "old");
  write({"ab", 2, 5}, "new");
  EXPECT_FALSE(publish({"ab", 1, 9}, "old"));
  EXPECT_THROW(enter_save_fence(folder_.path(), {"ab", 1, 10}), RuntimeFault);
  EXPECT_TRUE(publish({"ab", 2, 5}, "new"));
}

TEST_F(SaveFenceTest, AGenerationEntersAsOftenAsItSaves) {
  const auto fence = enter_save_fence(folder_.path(), {"ab", 1, 1});
  EXPECT_EQ(enter_save_fence(folder_.path(), {"ab", 1, 1}), fence);
  check_save_fence(folder_.path(), {"ab", 1, 1});
}

TEST_F(SaveFenceTest, ARunThatAnotherOneHasKeptOutNeverComesBack) {
  write({"ab", 7, 4}, "first");
  write({"cd", 0, 1}, "second");  // a run that begins anew in the folder
  EXPECT_FALSE(publish({"ab", 7, 4}, "first"));
  EXPECT_THAT(
      [&] {
        enter_save_fence(folder_.path(), {"ab", 8, 5});
      },
      ThrowsMessage<RuntimeFault>(HasSubstr("generation 5 of this run may not save, because another run saves "
                                            "there since. Give each run a folder of its own.")));
  write({"cd", 0, 2}, "third");
  EXPECT_TRUE(publish({"cd", 0, 2}, "third"));
}

TEST_F(SaveFenceTest, OfManyThatEnterAtOnceTheNewestRemains) {
  std::vector<std::thread> threads;
  for (int generation = 1; generation <= 16; ++generation) {
    threads.emplace_back([&, generation] {
      try {
        enter_save_fence(folder_.path(), {"ab", 1, generation});
      } catch (const RuntimeFault&) {
        // A newer one was faster.
      }
    });
  }
  for (std::thread& one : threads) one.join();
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, std::set<std::string>{".run-ab-1-16"});
}

TEST_F(SaveFenceTest, AFolderThatIsNotThereIsNamed) {
  const auto missing = folder_.path() / "missing";
  EXPECT_THAT(
      [&] {
        enter_save_fence(missing, {"ab", 1, 1});
      },
      ThrowsMessage<RuntimeFault>("'" + (missing / ".run-ab-1-1").string() +
                                  "' cannot be made: No such file or directory."));
}

}  // namespace
}  // namespace capstan
