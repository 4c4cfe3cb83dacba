#include "core/comm/port_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "core/comm/transport.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::StartsWith;
using testing::StrEq;
using testing::ThrowsMessage;

class PortFileTest : public testing::Test {
 protected:
  std::string quoted() const { return "'" + path_.string() + "'"; }
  std::string refusal() const {
    try {
      return "read port " + std::to_string(PortFile(path_).read(milliseconds(1)).port);
    } catch (const RuntimeFault& error) {
      return error.what();
    }
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "capstan-0-job.port";
};

TEST_F(PortFileTest, HandsOverThePortAndTheSecretToThisUserAlone) {
  PortFile file(path_);
  file.write({4711, "secret"});

  const PortEntry found = PortFile(path_).read(seconds(60));
  EXPECT_EQ(found.port, 4711);
  EXPECT_EQ(found.secret, "secret");
  struct stat status {};
  ASSERT_EQ(::lstat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, static_cast<mode_t>(S_IFREG | 0600));
}

TEST_F(PortFileTest, WaitsForRankZero) {
  auto reading = std::async([&] { return PortFile(path_).read(seconds(60)); });
  PortFile file(path_);
  file.write({4712, "secret"});
  EXPECT_EQ(reading.get().port, 4712);
}

TEST_F(PortFileTest, LeavesNothingBehind) {
  {
    PortFile file(path_);
    file.write({4711, "secret"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(refusal(), quoted() + ": rank 0 has not written its port there. Did it start on this host?");
}

TEST_F(PortFileTest, DoesNotBelieveWhatAKilledStartHasLeft) {
  if (::fork() == 0) {
    PortFile file(path_);
    file.write({4713, "old"});
    ::_exit(0);  // as a signal would: nothing is cleaned up
  }
  ::wait(nullptr);
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_EQ(refusal(), quoted() +
                           ": rank 0 has not written its port there. What lies there was left by an earlier start. "
                           "Did it start on this host?");

  PortFile file(path_);
  file.write({4714, "new"});
  EXPECT_EQ(PortFile(path_).read(seconds(60)).secret, "new");
}

TEST_F(PortFileTest, FollowsNoLink) {
  write_bytes(folder_ / "target", "precious");
  std::filesystem::create_symlink(folder_ / "target", path_);
  EXPECT_EQ(refusal(), quoted() +
                           ": is a link, which is not followed. Delete it. The processes of a start without "
                           "MASTER_ADDR and MASTER_PORT meet through this file; set both, or XDG_RUNTIME_DIR to a "
                           "folder of yours.");

  PortFile file(path_);
  file.write({4715, "secret"});
  EXPECT_EQ(read_bytes(folder_ / "target"), "precious");
  EXPECT_EQ(PortFile(path_).read(seconds(60)).port, 4715);
}

TEST_F(PortFileTest, DoesNotBelieveAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  write_bytes(path_, "45671 secret\n");
  ASSERT_EQ(::chown(path_.c_str(), 54321, 0), 0);
  EXPECT_THAT(refusal(),
              StartsWith(quoted() + ": belongs to user 54321, not to you (root), so the port in it is not believed. "
                                    "Delete it. The processes of a start without MASTER_ADDR"));
}

TEST_F(PortFileTest, SaysWhyItCannotBeWritten) {
  std::filesystem::create_directory(path_);
  write_bytes(path_ / "kept", "");
  PortFile file(path_);
  EXPECT_THAT(
      [&] {
        file.write({4711, "secret"});
      },
      ThrowsMessage<RuntimeFault>(StartsWith(quoted() + ": cannot be written: ")));
  EXPECT_THAT(
      [&] {
        PortFile("/nowhere/file").write({4711, "secret"});
      },
      ThrowsMessage<RuntimeFault>(StartsWith("'/nowhere/file': cannot be written: No such file or directory.")));
}

/// Two processes' worth of ranks that meet through a file, as after mpirun.
class MeetingTest : public PortFileTest {
 protected:
  std::future<std::shared_ptr<Transport>> start(int rank, const std::filesystem::path& file) const {
    Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.size = 2;
    rendezvous.address = "127.0.0.1";
    rendezvous.port_file = file.string();
    return std::async([rendezvous] { return connect_gloo(rendezvous, seconds(60), seconds(60)); });
  }
};

TEST_F(MeetingTest, RanksMeetThroughTheFile) {
  auto second = start(1, path_), first = start(0, path_);
  const auto zero = first.get(), one = second.get();
  zero->publish("key", "text");
  EXPECT_EQ(one->read("key", seconds(60)), "text");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(MeetingTest, ARankDoesNotTalkToAStoreThatDoesNotKnowTheSecret) {
  auto first = start(0, path_);
  const PortEntry entry = PortFile(path_).read(seconds(60));
  const auto forged = folder_ / "forged.port";
  PortFile file(forged);
  file.write({entry.port, random_secret()});

  EXPECT_THAT([&] { start(1, forged).get(); },
              ThrowsMessage<RuntimeFault>(StrEq("rank 1: what listens at 127.0.0.1:" + std::to_string(entry.port) +
                                                " is not rank 0 of this start, though '" + forged.string() +
                                                "' names that port. Start the processes again.")));
  auto second = start(1, path_);
  EXPECT_NE(first.get(), nullptr);
  EXPECT_NE(second.get(), nullptr);
}

}  // namespace
}  // namespace capstan
