// Folders of elastic launches that live, and those that were left: locks tell which, not process numbers.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/elastic/launch_process.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::launch_at;
using test::LaunchProcess;
using test::left_by_another;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

World of_generation(std::int64_t generation) {
  World world;
  world.generation = generation;
  return world;
}

/// Folders in a place that no launch of other tests looks at.
class LeftFolder : public ::testing::Test {
 protected:
  /// What a launch of "the same" begins with now: the generation of the one before, or 0.
  std::int64_t next_begins_with() const {
    const WorldFolder next = WorldFolder::create("the same", place_.path());
    const std::int64_t generation = next.read().generation;
    next.remove();
    return generation;
  }
  /// A process beside the test that makes a launch in generation 4, at step 7.
  std::unique_ptr<LaunchProcess> launch(bool own_numbers, const std::string& text = "the same") const {
    return std::make_unique<LaunchProcess>(
        own_numbers, [this, text] { return launch_at(text, 7, of_generation(4), place_.path()); });
  }
  /// A process beside the test that joins a launch.
  static std::unique_ptr<LaunchProcess> member_of(const fs::path& path) {
    return std::make_unique<LaunchProcess>(false, [path] {
      static const WorldFolder folder(path);
      folder.join();
      return std::string("joined");
    });
  }

  test::TemporaryFolder place_;
};

TEST_F(LeftFolder, IsListedWhileItsLauncherLivesAndRemovedByTheNextOneAfterwards) {
  const auto other = launch(false, "another");
  const fs::path path = other->text();
  EXPECT_THAT(WorldFolder::list(place_.path()).living, ElementsAre(path));
  EXPECT_TRUE(WorldFolder(path).launcher_lives());
  other->end();
  EXPECT_FALSE(WorldFolder(path).launcher_lives());
  EXPECT_THAT(WorldFolder::list(place_.path()).living, IsEmpty());
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(LeftFolder, IsTakenOverByTheNextLaunchOfTheSameText) {
  const fs::path left = left_by_another("the same", 7, of_generation(4), place_.path());
  const WorldFolder next = WorldFolder::create("the same", place_.path());
  EXPECT_EQ(WorldFolder::launcher_of(next.path()), getpid());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(next.read().generation, 4);
  EXPECT_EQ(next.last_step().step, 7);
  EXPECT_FALSE(next.is_ready(3));
  EXPECT_TRUE(fs::exists(next.snapshots() / "member-0.0"));
  EXPECT_TRUE(WorldFolder(next.path()).launcher_lives());
  // A second launch of the text begins anew: the first one lives.
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(next.path()));
}

TEST_F(LeftFolder, IsNotTakenOverWhereTheRunHasEndedOrAnotherIsLaunched) {
  const auto expect_removed = [&](const std::string& launch, std::int64_t step, const World& world) {
    const fs::path left = left_by_another(launch, step, world, place_.path());
    EXPECT_TRUE(fs::exists(left));
    EXPECT_EQ(next_begins_with(), 0) << launch << " at " << step;
    EXPECT_FALSE(fs::exists(left)) << launch << " at " << step;
  };
  World ended = of_generation(4);
  ended.end = "the run has finished";
  expect_removed("the same", 7, ended);
  expect_removed("the same", 0, of_generation(4));
  expect_removed("another", 0, of_generation(4));
}

TEST_F(LeftFolder, OfAnotherLaunchThatCanGoOnStaysForTenMinutesAfterItsLastStep) {
  const fs::path left = left_by_another("another", 7, of_generation(4), place_.path());
  const auto at = [&](double seconds_ago) {
    const WorldFolder folder(left);
    folder.tell_step({4, 7, folder.seconds() - seconds_ago});
  };
  at(590);
  EXPECT_THAT(WorldFolder::list(place_.path()).left, ElementsAre(left));
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(left / "snapshots/member-0.0"));
  at(-1000);  // before the host was started anew
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_FALSE(fs::exists(left));
  const fs::path older = left_by_another("another", 7, of_generation(4), place_.path());
  const WorldFolder folder(older);
  folder.tell_step({4, 7, folder.seconds() - 601});
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_FALSE(fs::exists(older));
}

TEST_F(LeftFolder, OfTwoEachGoesToALauncherOfItsOwn) {
  // Two launchers of one command, as where one machine stands for two hosts.
  const auto first = launch(false), second = launch(false);
  first->end();
  second->end();
  const WorldFolder one = WorldFolder::create("the same", place_.path());
  const WorldFolder other = WorldFolder::create("the same", place_.path());
  EXPECT_EQ(one.read().generation, 4);
  EXPECT_EQ(other.read().generation, 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(place_.path()), fs::directory_iterator()), 2);
}

TEST_F(LeftFolder, StaysWhereAProcessOfItsLaunchLives) {
  const auto launcher = launch(false);
  const fs::path path = launcher->text();
  const auto member = member_of(path);
  EXPECT_EQ(member->text(), "joined");
  launcher->end();
  EXPECT_FALSE(WorldFolder(path).launcher_lives());
  EXPECT_THAT(WorldFolder::list(place_.path()).living, ElementsAre(path));
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(path));
  member->end();
  EXPECT_EQ(next_begins_with(), 4);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(LeftFolder, IsWaitedForUntilItsProcessesHaveEnded) {
  const auto awaits = [&](const std::string& text, std::chrono::milliseconds patience) {
    return WorldFolder::await_orphans(text, place_.path(), patience);
  };
  constexpr std::chrono::milliseconds kShort{50};
  const auto launcher = launch(false);
  const fs::path path = launcher->text();
  const auto member = member_of(path);
  EXPECT_EQ(member->text(), "joined");
  EXPECT_TRUE(awaits("the same", kShort)) << "the launcher lives";
  launcher->end();
  EXPECT_TRUE(awaits("another", kShort));
  EXPECT_FALSE(awaits("the same", kShort));
  std::thread end([&] {
    std::this_thread::sleep_for(2 * kShort);
    member->end();
  });
  EXPECT_TRUE(awaits("the same", std::chrono::minutes(5)));
  EXPECT_EQ(next_begins_with(), 4);
  end.join();
}

TEST_F(LeftFolder, IsJoinedByNobodyOnceAnotherLaunchHasIt) {
  const fs::path path = left_by_another("the same", 7, of_generation(4), place_.path());
  const WorldFolder late(path);
  const WorldFolder next = WorldFolder::create("the same", place_.path());
  EXPECT_THAT([&] { late.join(); },
              ::testing::ThrowsMessage<RuntimeFault>(
                  "'" + path.string() +
                  "': the launcher that has started this process is gone, and another launch has taken its folder "
                  "over. This process ends."));
}

// What a plugin forks off may outlive the process.
TEST_F(LeftFolder, IsNotHeldByAChildOfItsLauncher) {
  int end[2], came[2];
  ASSERT_EQ(pipe2(end, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(came, O_CLOEXEC), 0);
  LaunchProcess launcher(false, [&] {
    const std::string path = launch_at("the same", 7, of_generation(4), place_.path());
    char none = 0;
    if (fork() == 0) {
      close(end[1]);
      (void)!write(came[1], &none, 1);
      (void)!read(end[0], &none, 1);
      _exit(0);
    }
    // Before it runs, the child has all that its parent has.
    (void)!read(came[0], &none, 1);
    return path;
  });
  launcher.end();
  EXPECT_THAT(WorldFolder::list(place_.path()).living, IsEmpty());
  EXPECT_EQ(next_begins_with(), 4);
  for (const int one : {end[0], end[1], came[0], came[1]}) close(one);
}

TEST_F(LeftFolder, IsNeitherTakenNorRemovedWhileItsLauncherLivesInAnotherPidNamespace) {
  if (!test::has_pid_namespaces()) GTEST_SKIP() << test::kNoPidNamespaces;
  // As process 1 there, whose number another process has here, and as one whose number nobody has here.
  const auto container = launch(true);
  const fs::path path = container->text();
  EXPECT_EQ(WorldFolder::launcher_of(path), 1);
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(path));
  WorldFolder::create("another", place_.path()).remove();
  EXPECT_TRUE(fs::exists(path));
  EXPECT_THAT(WorldFolder::list(place_.path()).living, Contains(path));
  const fs::path unknown = path.parent_path() / ("capstan-elastic-" + std::to_string(geteuid()) + "-4194304-abcdef");
  fs::rename(path, unknown);
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(unknown));
  container->end();
  EXPECT_EQ(next_begins_with(), 4);
  EXPECT_FALSE(fs::exists(unknown));
}

TEST_F(LeftFolder, IsTakenOverByARestartedContainerWhoseLauncherHasTheSameNumber) {
  if (!test::has_pid_namespaces()) GTEST_SKIP() << test::kNoPidNamespaces;
  for (int start = 0; start < 3; ++start) {
    const auto container = std::make_unique<LaunchProcess>(true, [&] {
      static const WorldFolder folder = WorldFolder::create("the same", place_.path());
      const std::int64_t begun_with = folder.read().generation;
      folder.write(of_generation(begun_with + 1));
      folder.tell_step({begun_with + 1, 7, 1.5});
      std::ofstream(folder.snapshots() / "member-0.0") << "state";
      return std::to_string(getpid()) + " begins with " + std::to_string(begun_with);
    });
    EXPECT_EQ(container->text(), "1 begins with " + std::to_string(start));
    EXPECT_EQ(std::distance(fs::directory_iterator(place_.path()), fs::directory_iterator()), 1);
  }
}

TEST_F(LeftFolder, ThatIsBeingMadeStaysForAMinute) {
  const fs::path path = place_ / ("capstan-elastic-" + std::to_string(geteuid()) + "-1-abcdef");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  const auto make_older = [&] {
    const timespec old[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
  };
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(path));
  make_older();
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_FALSE(fs::exists(path));
  // Its launcher was killed a moment later.
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  std::ofstream(path / "alive") << "";
  std::ofstream(path / "board") << "";
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_TRUE(fs::exists(path));
  make_older();
  EXPECT_EQ(next_begins_with(), 0);
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace capstan
