#include "core/elastic/world.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "core/errors.hpp"
#include "tests/core/checkpoint/small_disk.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

class WorldFolderTest : public ::testing::Test {
 protected:
  ~WorldFolderTest() override { folder_.remove(); }
  WorldFolder folder_ = WorldFolder::create("test");
};

World of_generation(std::int64_t generation) {
  World world;
  world.generation = generation;
  return world;
}

TEST_F(WorldFolderTest, TellsWhatTheLauncherHasDecided) {
  EXPECT_EQ(folder_.read().generation, 0);
  World world;
  world.generation = 7;
  world.members = {4, 0, 9};
  world.processes = {400, 100, 900};
  world.hosts = {0, 0, 1};
  world.waiting = {1000};
  world.change = "rank 2 \"was\" killed";
  world.since = 12.5;
  world.waited = 0.25;
  world.size = 3;
  world.losses = 2;
  world.wish = "process 10 has joined";
  world.end = "enough";
  world.end_code = 130;
  world.saver = 9;
  const std::uint32_t before = folder_.revision();
  folder_.write(world);
  const WorldFolder other(folder_.path());
  EXPECT_NE(other.revision(), before);
  const World read = other.read();
  EXPECT_EQ(read.generation, 7);
  EXPECT_EQ(read.members, world.members);
  EXPECT_EQ(read.processes, world.processes);
  EXPECT_EQ(read.waiting, world.waiting);
  EXPECT_EQ(read.hosts, world.hosts);
  EXPECT_EQ(read.change, world.change);
  EXPECT_EQ(read.since, 12.5);
  EXPECT_EQ(read.waited, 0.25);
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.losses, 2);
  EXPECT_EQ(read.wish, world.wish);
  EXPECT_EQ(read.end, "enough");
  EXPECT_EQ(read.end_code, 130);
  EXPECT_EQ(read.saver, 9);
}

TEST(WorldTest, IsNotReadFromWhatDoesNotHoldTogether) {
  World world;
  world.generation = 1;
  world.members = {4, 0};
  world.processes = {400, 100};
  world.hosts = {0, 1};
  EXPECT_EQ(World::of(world.json()).hosts, world.hosts);
  const auto says = [&](const std::function<void(World&)>& change) -> std::string {
    World changed = world;
    change(changed);
    try {
      World::of(changed.json());
    } catch (const std::out_of_range& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(says([](World& one) { one.hosts = {0}; }), "a world of 2 members has 'hosts' of 1");
  EXPECT_EQ(says([](World& one) { one.processes = {400}; }), "a world of 2 members has 'processes' of 1");
  EXPECT_EQ(says([](World& one) { one.members.clear(); }), "a world of 0 members has 'hosts' of 2");
  EXPECT_EQ(says([](World& one) { one.members = {4, 4}; }), "a world has one member twice");
  EXPECT_EQ(says([](World& one) { one.members = {4, -1}; }), "a world has numbers below 0");
  EXPECT_EQ(says([](World& one) { one.generation = -1; }), "a world has numbers below 0");
  EXPECT_EQ(says([](World& one) { one.hosts.clear(); }), "a world of 2 members has 'hosts' of 0");
}

TEST_F(WorldFolderTest, TellsWhatProcessesSay) {
  const WorldFolder other(folder_.path());
  EXPECT_FALSE(other.is_ready(3));
  folder_.tell_ready(3);
  EXPECT_TRUE(other.is_ready(3));
  folder_.tell_paused(2, 3, /*leaves=*/false);
  folder_.tell_paused(2, 4, /*leaves=*/true);
  EXPECT_TRUE(other.has_paused(2, 3));
  EXPECT_FALSE(other.has_paused(1, 3));
  EXPECT_FALSE(other.leaves(3));
  EXPECT_TRUE(other.leaves(4));
  folder_.tell_broken(2, "rank 1 is gone");
  folder_.tell_broken(2, "rank 0 is gone");
  EXPECT_EQ(other.why_broken(2), "rank 1 is gone");
  EXPECT_EQ(other.why_broken(3), std::nullopt);
  folder_.tell_step({2, 50, 1.5});
  EXPECT_EQ(other.last_step().generation, 2);
  EXPECT_EQ(other.last_step().step, 50);
  EXPECT_EQ(other.last_step().at, 1.5);
}

TEST_F(WorldFolderTest, KeepsTheFirstOfferAlone) {
  EXPECT_TRUE(folder_.offer("made-of", "one"));
  EXPECT_FALSE(WorldFolder(folder_.path()).offer("made-of", "another"));
  EXPECT_EQ(folder_.read("made-of"), "one");
}

TEST_F(WorldFolderTest, WakesWhoWaitsForTheLauncher) {
  const std::uint32_t revision = folder_.revision();
  const pid_t child = fork();
  if (child == 0) {
    WorldFolder(folder_.path()).write({});
    _exit(0);
  }
  while (folder_.revision() == revision) folder_.await_other_than(revision, std::chrono::minutes(5));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

/// Fills what a file system has left.
void fill(const std::filesystem::path& place) {
  std::ofstream out(place / "filling", std::ios::binary | std::ios::app);
  const std::string page(4096, 'x');
  while (out << page << std::flush) {
  }
}

TEST(FullMemory, IsNamedAndLeavesNoFolderWhateverIsFree) {
  int refused = 0, made = 0;
  for (int kilobytes = 4; kilobytes <= 96; kilobytes += 4) {
    const test::TemporaryFolder place;
    const test::SmallDisk disk(place.path(), std::to_string(kilobytes) + "k");
    if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
    try {
      const WorldFolder folder = WorldFolder::create("any", place.path());
      folder.write(of_generation(1));
      EXPECT_EQ(folder.read().generation, 1) << kilobytes;
      ++made;
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), ::testing::EndsWith("No space left on device.")) << kilobytes;
      EXPECT_TRUE(std::filesystem::is_empty(place.path())) << kilobytes;
      ++refused;
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(made, 5);
}

TEST(FullMemory, LeavesRoomForTheNextDecisionsOfTheLauncher) {
  const test::TemporaryFolder place;
  const test::SmallDisk disk(place.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  const WorldFolder folder = WorldFolder::create("any", place.path());
  folder.write(of_generation(1));
  fill(place.path());
  for (const std::int64_t generation : {2, 3, 4}) {
    folder.write(of_generation(generation));
    EXPECT_EQ(folder.read().generation, generation);
    std::ofstream port(folder.port_file(generation));
    EXPECT_TRUE(port << 4096 << std::flush) << generation;
  }
}

}  // namespace
}  // namespace capstan
