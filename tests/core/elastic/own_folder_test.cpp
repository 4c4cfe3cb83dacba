// Folders in shared memory that another user has planted, and files in them that are not what they should be.

#include "core/elastic/own_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/elastic/launch_process.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr uid_t kNobody = 65534;

class Planted : public ::testing::Test {
 protected:
  /// The name of a launch's folder of this user.
  fs::path name() const { return place_ / ("capstan-elastic-" + std::to_string(geteuid()) + "-1-abcdef"); }
  fs::path make_folder(mode_t mode = 0700) const {
    fs::create_directory(name());
    EXPECT_EQ(chmod(name().c_str(), mode), 0);
    return name();
  }
  std::string begins(const std::string& problem) const { return "'" + name().string() + "': " + problem; }
  /// Neither a status nor the start of a launch uses the folder, or touches it.
  void expect_refused(const std::string& sentence) const {
    EXPECT_THAT([&] { WorldFolder folder(name()); }, ThrowsMessage<RuntimeFault>(sentence));
    const WorldFolder::Listed listed = WorldFolder::list(place_.path());
    EXPECT_THAT(listed.living, IsEmpty());
    EXPECT_THAT(listed.refused, ElementsAre(sentence));
    ::testing::internal::CaptureStderr();
    WorldFolder::create("any", place_.path()).remove();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("launch: " + sentence + "\n"));
    EXPECT_TRUE(fs::exists(fs::symlink_status(name())));
  }

  test::TemporaryFolder place_;
};

TEST_F(Planted, FolderOfAnotherUserIsNotEntered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  const fs::path folder = make_folder(0777), target = place_ / "made-by-root";
  fs::create_symlink(target, folder / "board");
  fs::create_symlink(target, folder / "alive");
  ASSERT_EQ(mkfifo((folder / "world.json").c_str(), 0666), 0);
  ASSERT_EQ(mkfifo((folder / "launch").c_str(), 0666), 0);
  for (const fs::path& one : {folder, folder / "world.json", folder / "launch"}) {
    ASSERT_EQ(chown(one.c_str(), kNobody, kNobody), 0);
  }
  const std::string nobody = user_name(kNobody);
  const std::string sentence = begins("belongs to " + nobody +
                                      ", not to you (root), so that nothing in it is used. Its owner or root can "
                                      "remove it.");
  expect_refused(sentence);
  // Also one that seems to be closed to all others.
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  expect_refused(sentence);
  EXPECT_FALSE(fs::exists(target));
}

TEST_F(Planted, LinkToAFolderIsNotFollowed) {
  const test::TemporaryFolder elsewhere;
  fs::create_directory_symlink(elsewhere.path(), name());
  expect_refused(begins("is a link, which is not followed, where a folder was expected. Remove it."));
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

TEST_F(Planted, FileOrFifoIsNamed) {
  std::ofstream(name()) << "x";
  expect_refused(begins("is a regular file, where a folder was expected. Remove it."));
  fs::remove(name());
  ASSERT_EQ(mkfifo(name().c_str(), 0666), 0);
  expect_refused(begins("is a FIFO, where a folder was expected. Remove it."));
}

TEST_F(Planted, FolderThatOthersMayEnterIsRefused) {
  make_folder(0750);
  expect_refused(
      begins("has the mode 0750: other users may enter it, so that nothing in it is used. Remove it, or "
             "run: chmod 0700 '" +
             name().string() + "'."));
  EXPECT_NO_THROW(OwnFolder(name(), OwnFolder::Closed::kToWriters));
  make_folder(0770);
  EXPECT_THAT([&] { OwnFolder(name(), OwnFolder::Closed::kToWriters); },
              ThrowsMessage<RuntimeFault>(HasSubstr("has the mode 0770: other users may write to it, so that")));
}

TEST_F(Planted, FolderWithoutLockOfAnOlderVersionIsLeftAlone) {
  make_folder();
  std::ofstream(name() / "launch") << "any";
  expect_refused("'" + (name() / "alive").string() +
                 "': is missing: nobody can tell whether a process of its launch lives. A Capstan of an older version "
                 "has made the folder: remove it once that launch has ended.");
}

TEST_F(Planted, SeveralFoldersMakeOneLineAtTheStart) {
  for (const char* more : {"-1-abcdef", "-2-abcdef", "-3-abcdef"}) {
    std::ofstream(place_ / ("capstan-elastic-" + std::to_string(geteuid()) + more)) << "x";
  }
  ::testing::internal::CaptureStderr();
  WorldFolder::create("any", place_.path()).remove();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "capstan: warning: launch: " +
                begins("is a regular file, where a folder was expected. Remove it. 2 more cannot be used: 'capstan "
                       "launch --status'.\n"));
  EXPECT_EQ(WorldFolder::list(place_.path()).refused.size(), 3u);
}

/// The files of a folder of this user's own, whatever has become of them.
class OwnFiles : public Planted {
 protected:
  OwnFiles() : path_(test::left_by_another("the same", 7, world(), place_.path())) {}
  static World world() {
    World world;
    world.generation = 4;
    world.members = {0, 2};
    world.processes = {11, 12};
    world.hosts = {0, 0};
    return world;
  }
  void put(const std::string& name, const std::string& bytes) const {
    fs::remove_all(path_ / name);
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }
  void put_fifo(const std::string& name) const {
    fs::remove_all(path_ / name);
    ASSERT_EQ(mkfifo((path_ / name).c_str(), 0600), 0);
  }
  /// A launch of the text begins anew, says why, and removes the folder.
  void expect_removed(const std::string& sentence) {
    ::testing::internal::CaptureStderr();
    const WorldFolder next = WorldFolder::create("the same", place_.path());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("launch: " + sentence +
                          " Its launch is gone with all processes, and nobody can go on from it: the folder is "
                          "removed.\n"));
    EXPECT_EQ(next.read().generation, 0);
    EXPECT_FALSE(fs::exists(path_));
    next.remove();
    path_ = test::left_by_another("the same", 7, world(), place_.path());
  }
  std::string named(const std::string& file) const { return "'" + (path_ / file).string() + "': "; }

  fs::path path_;
};

TEST_F(OwnFiles, ThatAreFifosOrLinksAreNamedAndNeitherWaitedForNorFollowed) {
  for (const char* file : {"world.json", "board"}) {
    put_fifo(file);
    expect_removed(named(file) + "is a FIFO, where a regular file was expected. Remove it.");
    const fs::path target = place_ / "target";
    fs::rename(path_ / file, target);
    fs::create_symlink(target, path_ / file);
    expect_removed(named(file) + "is a link, which is not followed, where a regular file was expected. Remove it.");
    fs::remove(target);
    fs::remove(path_ / file);
    fs::create_directory(path_ / file);
    EXPECT_THAT([&] { WorldFolder(path_).read(); },
                ThrowsMessage<RuntimeFault>(StartsWith(named(file) + "is a folder, where a regular file")));
    fs::remove(path_ / file);
    put(file, "");
  }
}

TEST_F(OwnFiles, AWorldThatIsNotOneIsNamed) {
  const std::string is_not = "is not what a launcher of this version writes (";
  const std::string then = "). Remove the folder once its launch has ended.";
  const auto told = [&](const std::string& text) -> std::string {
    put("world.json", text);
    try {
      WorldFolder(path_).read();
    } catch (const RuntimeFault& fault) {
      return fault.what();
    }
    return "";
  };
  const std::string whole = test::read_bytes(path_ / "world.json");
  EXPECT_EQ(told(whole), "");
  EXPECT_THAT(told("{}"), AllOf(StartsWith(named("world.json") + is_not), HasSubstr("generation"), HasSubstr(then)));
  EXPECT_THAT(told("[]"), StartsWith(named("world.json") + is_not));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THAT(told(whole.substr(0, bytes)), StartsWith(named("world.json") + is_not)) << bytes;
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    return told(text);
  };
  EXPECT_THAT(with("\"size\":0", "\"size\":\"0\""), HasSubstr("(a value is of another type)"));
  EXPECT_THAT(with("\"hosts\":[0,0]", "\"hosts\":[0]"), HasSubstr("(a world of 2 members has 'hosts' of 1)"));
  EXPECT_THAT(with("\"generation\":4", "\"generation\":-4"), HasSubstr("(a world has numbers below 0)"));
  put("world.json", "{}");
  expect_removed(told("{}"));
}

TEST_F(OwnFiles, ABoardThatIsCutShortIsNamedAlsoWhileItIsInUse) {
  const std::string sentence =
      named("board") + "was cut short. A launcher makes it, and nobody else may change it: launch anew.";
  {
    const WorldFolder folder(path_);
    EXPECT_EQ(folder.last_step().step, 7);
    for (const off_t bytes : {off_t{70}, off_t{2}, off_t{0}}) {
      ASSERT_EQ(truncate((path_ / "board").c_str(), bytes), 0);
      EXPECT_THAT([&] { folder.last_step(); }, ThrowsMessage<RuntimeFault>(sentence)) << bytes;
      EXPECT_THAT([&] { folder.tell_step({4, 8, 2.0}); }, ThrowsMessage<RuntimeFault>(sentence)) << bytes;
      EXPECT_THAT([&] { folder.seconds(); }, ThrowsMessage<RuntimeFault>(sentence)) << bytes;
      EXPECT_THAT([&] { WorldFolder again(path_); }, ThrowsMessage<RuntimeFault>(sentence)) << bytes;
    }
    EXPECT_THAT([&] { folder.revision(); }, ThrowsMessage<RuntimeFault>(sentence));
    EXPECT_THAT([&] { folder.write(world()); }, ThrowsMessage<RuntimeFault>(sentence));
    EXPECT_THAT([&] { folder.await_other_than(0, std::chrono::minutes(5)); }, ThrowsMessage<RuntimeFault>(sentence));
  }
  expect_removed(sentence);
  put("board", std::string(4096, 'x'));
  EXPECT_THAT([&] { WorldFolder(path_).last_step(); },
              ThrowsMessage<RuntimeFault>(named("board") +
                                          "is damaged. A launcher makes it, and nobody else may change it: launch "
                                          "anew."));
}

TEST_F(OwnFiles, OfAnotherUserAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  for (const char* file : {"world.json", "board", "alive"}) {
    ASSERT_EQ(chown((path_ / file).c_str(), kNobody, kNobody), 0);
    EXPECT_THAT([&] { WorldFolder(path_).read(); },
                ThrowsMessage<RuntimeFault>(StartsWith(named(file) + "belongs to " + user_name(kNobody))))
        << file;
    ASSERT_EQ(chown((path_ / file).c_str(), 0, 0), 0);
  }
}

TEST(OwnFolder, IsTheOneThatWasOpenedWhateverTakesItsPlace) {
  const test::TemporaryFolder place;
  const OwnFolder folder = OwnFolder::make(place / "above" / "folder");
  EXPECT_EQ(fs::status(folder.path()).permissions(), fs::perms::owner_all);
  folder.write("file", "one");
  fs::rename(folder.path(), place / "moved");
  fs::create_directory(folder.path());
  EXPECT_FALSE(folder.is_at_its_path());
  EXPECT_TRUE(fs::is_empty(folder.path()));
  folder.write("file", "two");
  EXPECT_FALSE(folder.write_first("file", "three"));
  EXPECT_EQ(folder.read("file"), "two");
  EXPECT_EQ(folder.read("none"), std::nullopt);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(test::read_bytes(place / "moved" / "file"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(place / "moved"), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace capstan
