#include "core/output_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <future>

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class ReplaceFile : public ::testing::Test {
 protected:
  std::string file(const char* name) const { return read_bytes(folder_ / name); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), {}));
  }
  void expect_refused(const fs::path& path, const std::string& what) const {
    EXPECT_THAT([&] { replace_file(path, "text"); },
                ThrowsMessage<RuntimeFault>(
                    HasSubstr("'" + path.string() + "' cannot be written: it is " + what + ". Name a file.")));
  }

  TemporaryFolder folder_;
};

TEST_F(ReplaceFile, LeavesTheOlderFileUntilTheNewOneIsWhole) {
  write_bytes(folder_ / "f", "old");
  EXPECT_THAT(
      [&] {
        replace_file(folder_ / "f", [&](const fs::path& aside) {
          write_bytes(aside, "ha");
          EXPECT_EQ(file("f"), "old");
          throw RuntimeFault("the disk is full.");
        });
      },
      ThrowsMessage<RuntimeFault>("the disk is full."));
  EXPECT_EQ(file("f"), "old");
  EXPECT_EQ(entries(), 1u) << "the half";

  replace_file(folder_ / "f", "new");
  EXPECT_EQ(file("f"), "new");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(ReplaceFile, ReplacesTheTargetOfALinkAndNotTheLink) {
  fs::create_directory(folder_ / "deep");
  write_bytes(folder_ / "deep/target", "old");
  fs::create_symlink("deep/target", folder_ / "one");
  fs::create_symlink("one", folder_ / "two");
  fs::create_symlink("deep/new", folder_ / "dangling");

  replace_file(folder_ / "two", "new");
  replace_file(folder_ / "dangling", "made");

  EXPECT_EQ(file("deep/target"), "new");
  EXPECT_EQ(file("deep/new"), "made");
  for (const char* link : {"one", "two", "dangling"}) EXPECT_TRUE(fs::is_symlink(folder_ / link)) << link;
}

TEST_F(ReplaceFile, WritesIntoADeviceAndAPipe) {
  replace_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  fs::create_symlink("/dev/null", folder_ / "null");
  replace_file(folder_ / "null", "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "null"));

  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  auto read = std::async(std::launch::async, [&] { return read_bytes(folder_ / "pipe"); });
  replace_file(folder_ / "pipe", "text");
  EXPECT_EQ(read.get(), "text");
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
}

TEST_F(ReplaceFile, WritesIntoAFileThatIsOpenAsAnOutputOfThisProcess) {
  write_bytes(folder_ / "out", "");
  const int before = ::dup(STDOUT_FILENO);
  ASSERT_NE(std::freopen((folder_ / "out").c_str(), "w", stdout), nullptr);
  replace_file("/dev/stdout", "text");
  struct stat open_file {
  }, named_file{};
  EXPECT_EQ(::fstat(STDOUT_FILENO, &open_file), 0);
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ASSERT_EQ(::stat((folder_ / "out").c_str(), &named_file), 0);
  EXPECT_EQ(open_file.st_ino, named_file.st_ino) << "the file was replaced by another";
  EXPECT_EQ(file("out"), "text");
}

TEST_F(ReplaceFile, RefusesFoldersSocketsAndLinksInACircle) {
  fs::create_directory(folder_ / "folder");
  expect_refused(folder_ / "folder", "a folder");
  const int listening = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (folder_ / "socket").string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_refused(folder_ / "socket", "a socket");
  ::close(listening);
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  expect_refused(folder_ / "a", "a link that leads in a circle");
  EXPECT_THAT([&] { replace_file(folder_ / "nowhere/f", "text"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("nowhere/f: cannot be written: No such file or directory.")));
}

TEST_F(ReplaceFile, RefusesABlockDevice) {
  fs::path device;
  for (const auto& entry : fs::directory_iterator("/dev")) {
    if (entry.is_block_file()) device = entry.path();
  }
  if (device.empty()) GTEST_SKIP() << "no block device is here";
  EXPECT_THAT([&] { output_path(device); },
              ThrowsMessage<RuntimeFault>(HasSubstr("it is a block device. Name a file.")));
}

}  // namespace
}  // namespace capstan::testing
