#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "tests/plugins/offload/offload_plugin.hpp"
#include "tests/plugins/offload/sandbox.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kMiB = 1 << 20;

Json at(const fs::path& folder, const std::string& more = "{}") {
  Json params = Json::parse(more);
  params["nvme_path"] = folder.string();
  return params;
}

/// Writes a buffer and reads it back: "equal" or what went wrong, and what the plugin said of itself.
std::string round_trip(OffloadPlugin& plugin, std::size_t bytes = 3 * kMiB) {
  const auto from = aligned_memory(bytes), to = aligned_memory(bytes);
  for (std::size_t i = 0; i < bytes; ++i) from.get()[i] = static_cast<char>(i * 40503u >> 7);
  plugin.lend(to.get(), bytes);
  plugin.add_buffer(9, bytes);
  plugin.wait(plugin.write(9, 0, bytes, from.get()));
  plugin.wait(plugin.read(9, 0, bytes, to.get()));
  const std::string about = plugin.stats().at("about").as_string();
  plugin.take_back(to.get());
  return (std::memcmp(from.get(), to.get(), bytes) == 0 ? "equal; " : "CHANGED; ") + about + "\n" + plugin.log();
}

std::uint64_t own_io(const std::string& name) {
  std::ifstream file("/proc/self/io");
  for (std::string key; file >> key;) {
    std::uint64_t value = 0;
    file >> value;
    if (key == name + ":") return value;
  }
  return 0;
}

class Nvme : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string refused = nvme_refusal("io_uring", folder_.path().string());
    if (!refused.empty()) GTEST_SKIP() << refused;
  }

  TemporaryFolder folder_;
};

/// What must be mounted or taken away needs root.
class NvmeAsRoot : public Nvme {
 protected:
  void SetUp() override {
    Nvme::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "only root can mount a file system";
    const std::string refused = in_child([] { return private_mounts(), std::string(); });
    if (!refused.empty()) GTEST_SKIP() << "a small file system cannot be mounted here: " << refused;
  }
};

TEST_F(Nvme, ReadsAndWritesTheDiskItself) {
  OffloadPlugin plugin("nvme", at(folder_.path()));
  if (plugin.log() != "") GTEST_SKIP() << "this folder cannot be moved past the page cache: " << plugin.log();
  const std::uint64_t read = own_io("read_bytes"), written = own_io("write_bytes");
  EXPECT_THAT(round_trip(plugin, 16 * kMiB), HasSubstr("equal"));
  EXPECT_GE(own_io("read_bytes") - read, 16 * kMiB);
  EXPECT_LE(own_io("read_bytes") - read, 17 * kMiB);
  EXPECT_GE(own_io("write_bytes") - written, 16 * kMiB);
  EXPECT_LE(own_io("write_bytes") - written, 17 * kMiB);
}

TEST_F(Nvme, SaysWhatItIsInOneLine) {
  OffloadPlugin plugin("nvme", at(folder_.path(), R"({"engine": "io_uring"})"));
  EXPECT_THAT(round_trip(plugin), HasSubstr(folder_.path().string() + " by io_uring, depth 256, registered buffers"));
  EXPECT_THAT(plugin.log(), Not(HasSubstr("cannot")));
  EXPECT_FALSE(plugin.stats().at("registered").as_bool());
  OffloadPlugin unpinned("nvme", at(folder_.path(), R"({"engine": "io_uring", "pin_memory": false})"));
  EXPECT_THAT(round_trip(unpinned), Not(HasSubstr("registered")));
}

TEST_F(Nvme, TakesTheNextEngineThatTheKernelAllowsAndSaysWhyOnce) {
  for (const unsigned error : {EPERM, ENOSYS}) {
    const std::string why =
        std::string("io_uring cannot be used here (io_uring_setup says: ") + strerror(error) + "); ";
    EXPECT_THAT(in_child([&] {
                  refuse_call(SYS_io_uring_setup, error);
                  OffloadPlugin plugin("nvme", at(folder_.path()));
                  return round_trip(plugin);
                }),
                AllOf(HasSubstr("equal"), HasSubstr(" by libaio, depth 256\n"),
                      HasSubstr(why + "offload goes on with libaio.")));
  }
  EXPECT_THAT(
      in_child([&] {
        refuse_call(SYS_io_uring_setup, EPERM);
        refuse_call(SYS_io_setup, ENOSYS);
        OffloadPlugin plugin("nvme", at(folder_.path()));
        return round_trip(plugin);
      }),
      AllOf(HasSubstr("equal"), HasSubstr(" by threads, depth 256\n"),
            HasSubstr("libaio cannot be used here (io_setup says: Function not implemented); offload goes on with "
                      "threads.")));
  EXPECT_THAT(
      in_child([&] {
        refuse_call(SYS_io_uring_enter, EPERM);
        OffloadPlugin plugin("nvme", at(folder_.path()));
        return round_trip(plugin);
      }),
      AllOf(HasSubstr("equal"), HasSubstr("by libaio"), HasSubstr("io_uring_enter says: Operation not permitted")));
  EXPECT_THAT(
      in_child([&] {
        refuse_call(SYS_io_uring_setup, EPERM);
        OffloadPlugin plugin("nvme", at(folder_.path(), R"({"engine": "io_uring"})"));
        return std::string();
      }),
      HasSubstr("engine: io_uring cannot be used here: io_uring_setup says: Operation not permitted. Leave engine "
                "out to use another."));
}

TEST_F(Nvme, GoesThroughThePageCacheWhereDirectTransfersAreRefused) {
  EXPECT_THAT(
      in_child([&] {
        refuse_call(SYS_openat, EINVAL, 2, O_DIRECT);
        OffloadPlugin plugin("nvme", at(folder_.path()));
        return round_trip(plugin) + std::to_string(plugin.facts().alignment);
      }),
      AllOf(HasSubstr("equal"), HasSubstr("does not take direct I/O (O_DIRECT): transfers go through the page cache"),
            ::testing::EndsWith("1")));
}

TEST_F(Nvme, LeavesNoNameWhereUnnamedFilesAreRefused) {
  EXPECT_THAT(in_child([&] {
                refuse_call(SYS_openat, EOPNOTSUPP, 2, O_TMPFILE & ~O_DIRECTORY);
                OffloadPlugin plugin("nvme", at(folder_.path()));
                return round_trip(plugin) + (fs::is_empty(folder_.path()) ? "no name" : "a name");
              }),
              AllOf(HasSubstr("equal"), HasSubstr("no name")));
}

TEST_F(Nvme, LeavesNothingBehindWhenItIsKilled) {
  EXPECT_THAT(in_child([&] {
                OffloadPlugin plugin("nvme", at(folder_.path()));
                const std::string text = round_trip(plugin);
                const auto memory = aligned_memory(3 * kMiB);
                plugin.write(9, 0, 3 * kMiB, memory.get());
                raise(SIGKILL);
                return text;
              }),
              HasSubstr("ended by signal 9"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Nvme, MakesItsFolderAndTakesItAwayAgain) {
  {
    OffloadPlugin plugin("nvme", at(folder_ / "a/b/"));
    EXPECT_TRUE(fs::is_directory(folder_ / "a/b"));
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  {
    OffloadPlugin plugin("nvme", at(folder_ / "a/b"));
    write_bytes(folder_ / "a/kept", "of somebody else");
  }
  EXPECT_TRUE(fs::exists(folder_ / "a/kept"));
  EXPECT_FALSE(fs::exists(folder_ / "a/b"));
}

TEST_F(Nvme, GoesOnWhenItsFolderIsRemoved) {
  OffloadPlugin plugin("nvme", at(folder_ / "gone"));
  fs::remove(folder_ / "gone");
  EXPECT_THAT(round_trip(plugin), HasSubstr("equal"));
}

TEST_F(Nvme, RefusesWhatIsNoFolderInOneSentence) {
  const auto refusal = [](const fs::path& path) { return thrown_by([&] { OffloadPlugin("nvme", at(path)); }); };
  write_bytes(folder_ / "file", "");
  fs::create_symlink("nowhere", folder_ / "link");
  EXPECT_THAT(refusal(""), HasSubstr("nvme_path: is empty. Name a folder on a disk."));
  EXPECT_THAT(refusal(folder_ / "file"), HasSubstr("file': is a file, not a folder. Name a folder on a disk."));
  EXPECT_THAT(refusal(folder_ / "link"),
              HasSubstr("link': is a link to 'nowhere', which is not there. Make that folder, or name another one."));
  EXPECT_THAT(refusal("/proc/capstan"), HasSubstr("nvme_path '/proc/capstan': is not there and cannot be made: No such "
                                                  "file or directory. Name a folder that this user may write to."));
}

TEST_F(Nvme, RefusesParametersThatTheDiskOrTheBuildCannotServe) {
  EXPECT_THAT(thrown_by([&] { OffloadPlugin("nvme", at(folder_.path(), R"({"block_size": 513})")); }),
              ::testing::ContainsRegex("block_size: 513 is no multiple of (512|4096), the unit of the disk at '"));
  EXPECT_THAT(
      thrown_by([&] { OffloadPlugin("nvme", at(folder_.path(), R"({"use_gds": true})")); }),
      HasSubstr("use_gds: GPUDirect Storage is for CUDA, and its library cuFile is not supported. Leave it out."));
  OffloadPlugin deep("nvme", at(folder_.path(), R"({"queue_depth": 65536, "engine": "io_uring"})"));
  EXPECT_THAT(deep.log(), HasSubstr("queue_depth: the kernel gives 32768 of 65536."));
}

TEST_F(Nvme, RefusesRangesOutsideTheirBufferAndTicketsThatHaveEnded) {
  OffloadPlugin plugin("nvme", at(folder_.path()));
  char byte = 0;
  plugin.add_buffer(1, 100);
  EXPECT_THAT(thrown_by([&] { plugin.add_buffer(1, 100); }), HasSubstr("buffer 1 is registered already."));
  EXPECT_THAT(thrown_by([&] { plugin.read(1, 100, 1, &byte); }),
              HasSubstr("range of 1 bytes at offset 100 is outside buffer 1, which has 100."));
  EXPECT_THAT(thrown_by([&] { plugin.release_buffer(2); }), HasSubstr("buffer 2 is not registered."));
  const std::uint64_t ticket = plugin.write(1, 99, 1, &byte);
  plugin.wait(ticket);
  EXPECT_THAT(thrown_by([&] { plugin.wait(ticket); }), HasSubstr("ticket 1 has ended already."));
  EXPECT_THAT(thrown_by([&] { plugin.fault(ticket); }), HasSubstr("ticket 1 is not the one that failed last."));
}

TEST_F(Nvme, TellsAFileSizeLimitAtTheReservationAndSurvivesItAtAWrite) {
  for (const char* engine : {"io_uring", "libaio", "threads"}) {
    EXPECT_THAT(
        in_child([&] {
          OffloadPlugin plugin("nvme", at(folder_.path(), std::string(R"({"engine": ")") + engine + "\"}"));
          plugin.add_buffer(1, 4 * kMiB);
          limit(RLIMIT_FSIZE, 2 * kMiB + 4096);
          std::string text = thrown_by([&] { plugin.add_buffer(2, kMiB); });
          const auto memory = aligned_memory(4 * kMiB);
          std::memset(memory.get(), 1, 4 * kMiB);
          const std::uint64_t ticket = plugin.write(1, 0, 4 * kMiB, memory.get());
          text += thrown_by([&] { plugin.wait(ticket); });
          const capstan_offload_fault fault = plugin.fault(ticket);
          text += " fault " + std::to_string(fault.error) + " " + std::to_string(fault.write) + " " +
                  std::to_string(fault.buffer_id) + " " + std::to_string(fault.bytes) + " " +
                  std::to_string(fault.done);
          plugin.wait(plugin.write(1, 0, kMiB, memory.get()));  // what lies below the limit goes on
          return text;
        }),
        AllOf(HasSubstr("no room for buffer 2: it needs 1 MB beside the 4 MB that are reserved, the limit of a "
                        "file's size is 2 MB. Raise it: ulimit -f unlimited."),
              HasSubstr("writing 4194304 bytes at offset 0 of buffer 1 failed after 2101248 bytes: File too large, "
                        "the limit of a file's size is 2 MB. Raise it: ulimit -f unlimited."),
              HasSubstr(" fault 27 1 1 4194304 2101248"), Not(HasSubstr("signal"))))
        << engine;
  }
}

TEST_F(Nvme, GoesOnUnregisteredWhereMemoryMayNotBeLocked) {
  EXPECT_THAT(
      in_child([&] {
        lock_at_most(kMiB);
        OffloadPlugin plugin("nvme", at(folder_.path(), R"({"engine": "io_uring"})"));
        const auto other = aligned_memory(2 * kMiB);
        plugin.lend(other.get(), 2 * kMiB);
        return round_trip(plugin);
      }),
      AllOf(HasSubstr("equal"), Not(HasSubstr("registered buffers")),
            HasSubstr("pin_memory: 2 MB of memory cannot be registered with the kernel (Cannot allocate memory; "
                      "ulimit -l: 1024 KiB). Transfers go on unregistered, at up to twice the CPU time. Raise the "
                      "limit: ulimit -l unlimited.\n"),
            Not(HasSubstr("3 MB of memory"))));
  EXPECT_THAT(in_child([&] {
                lock_at_most(0);
                OffloadPlugin plugin("nvme", at(folder_.path()));
                return round_trip(plugin);
              }),
              HasSubstr("equal"));
}

TEST_F(Nvme, NeedsFewFiles) {
  EXPECT_THAT(in_child([&] {
                limit(RLIMIT_NOFILE, 16);
                OffloadPlugin plugin("nvme", at(folder_.path()));
                for (std::uint64_t id = 100; id < 150; ++id) plugin.add_buffer(id, 4096);
                return round_trip(plugin);
              }),
              HasSubstr("equal"));
}

TEST_F(NvmeAsRoot, TellsWhatADiskLacksBeforeAnythingIsWritten) {
  EXPECT_THAT(
      in_child([&] {
        private_mounts();
        mount_tmpfs(folder_.path(), "size=8m");
        OffloadPlugin plugin("nvme", at(folder_.path()));
        plugin.add_buffer(1, 5 * kMiB);
        std::string text = thrown_by([&] { plugin.add_buffer(2, 6 * kMiB); });
        plugin.release_buffer(1);
        plugin.add_buffer(2, 6 * kMiB);
        return text + plugin.log();
      }),
      AllOf(HasSubstr("no room for buffer 2: it needs 6 MB beside the 5 MB that are reserved, the file system has "
                      "3 MB. Free some, or name a folder on a larger disk."),
            HasSubstr("is in memory (tmpfs): what is offloaded there takes memory all the same. Name a folder on a "
                      "disk."),
            Not(HasSubstr("threw"))));
}

TEST_F(NvmeAsRoot, TellsADiskThatFillsUpWhereRoomCannotBeReserved) {
  EXPECT_THAT(
      in_child([&] {
        private_mounts();
        mount_tmpfs(folder_.path(), "size=8m");
        refuse_call(SYS_fallocate, EOPNOTSUPP);
        OffloadPlugin plugin("nvme", at(folder_.path()));
        std::string text = thrown_by([&] { plugin.add_buffer(1, 9 * kMiB); });
        plugin.add_buffer(2, 6 * kMiB);
        write_bytes(folder_ / "other", std::string(4 * kMiB, 'x'));
        const auto memory = aligned_memory(6 * kMiB);
        std::memset(memory.get(), 1, 6 * kMiB);
        const std::uint64_t ticket = plugin.write(2, 0, 6 * kMiB, memory.get());
        text += thrown_by([&] { plugin.wait(ticket); });
        return text + std::to_string(plugin.fault(ticket).error);
      }),
      AllOf(HasSubstr("no room for buffer 1: it needs 9 MB, the file system has 8 MB."),
            HasSubstr("writing 6291456 bytes at offset 0 of buffer 2 failed after "),
            HasSubstr("No space left on device, the file system has 0 bytes. Free some, or use a larger disk.28")));
}

TEST_F(NvmeAsRoot, TellsAFolderThatMayNotBeWrittenTo) {
  EXPECT_THAT(
      in_child([&] {
        private_mounts();
        mount_tmpfs(folder_.path(), "size=1m");
        mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr);
        OffloadPlugin plugin("nvme", at(folder_.path()));
        return std::string();
      }),
      HasSubstr("a file cannot be made there: Read-only file system. Name a folder that this user may write to."));
}

TEST_F(NvmeAsRoot, TellsWhatADiskThatFailsRefusesToRead) {
  const std::string told = in_child([&] {
    private_mounts();
    mount_tmpfs(folder_.path(), "size=64m");
    const std::string image = (folder_ / "image").string(), disk = (folder_ / "disk").string();
    fs::create_directory(disk);
    write_bytes(image, "");
    fs::resize_file(image, 48 * kMiB);
    if (std::system(("mkfs.ext4 -q -O ^has_journal " + image + " && mount -o loop " + image + " " + disk).c_str())) {
      return std::string("no loop device");
    }
    OffloadPlugin plugin("nvme", at(disk));
    std::string text = round_trip(plugin, 16 * kMiB);
    fs::resize_file(image, kMiB);
    const auto memory = aligned_memory(16 * kMiB);
    const std::uint64_t ticket = plugin.read(9, 0, 16 * kMiB, memory.get());
    text += thrown_by([&] { plugin.wait(ticket); });
    return text + " fault " + std::to_string(plugin.fault(ticket).error);
  });
  if (told == "no loop device") GTEST_SKIP() << "a small file system cannot be mounted here: " << told;
  EXPECT_THAT(told, AllOf(HasSubstr("equal"), HasSubstr("reading 16777216 bytes at offset 0 of buffer 9 failed"),
                          HasSubstr("Input/output error. The disk or its driver fails: the kernel's log (dmesg) "
                                    "says more. fault 5")));
}

}  // namespace
}  // namespace capstan::test
