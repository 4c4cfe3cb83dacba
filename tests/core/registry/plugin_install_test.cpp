#include "core/registry/plugin_install.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/registry/file_hash.hpp"
#include "core/registry/plugin_pin.hpp"
#include "tests/core/checkpoint/traced_process.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::durability_calls;
using test::kill_at_stop;
using test::TracedEnd;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kFile = "libcapstan_plain.so";

class PluginInstall : public ::testing::Test {
 protected:
  PluginInstall() { fs::create_directory(folder_ / "source"); }
  /// A plugin whose bytes the package's name makes others.
  fs::path source(std::string_view package = "test-plain") const {
    return patched_copy(test_plugin("test_plain"), folder_ / "source" / kFile, "test-plain", package);
  }
  fs::path place() const { return folder_ / "place"; }

  TemporaryFolder folder_;
};

class PluginInstallCrash : public PluginInstall {
 protected:
  void SetUp() override {
    if (kill_at_stop(
            0, [] { getppid(); }, [] {}) == TracedEnd::kNotTraceable) {
      GTEST_SKIP() << "ptrace is not allowed";
    }
  }
  /// Kills an installation at each of its system calls in turn. Returns how many kills found a plugin in its place.
  int kill_everywhere(const std::function<void()>& prepare, bool replace, const std::function<void()>& check) const {
    int found = 0;
    // At its begin alone: the end of a call leaves what the begin of the next one finds.
    for (int stop = 0; !HasFailure(); stop += 2) {
      fs::remove_all(place());
      fs::create_directory(place());
      fs::permissions(place(), fs::perms::owner_all);
      prepare();
      const auto end = kill_at_stop(
          stop, [&] { install_plugins(folder_ / "source" / kFile, place(), replace); }, [] {});
      if (end == TracedEnd::kFinished) return found;
      EXPECT_EQ(end, TracedEnd::kKilled);
      SCOPED_TRACE("killed at stop " + std::to_string(stop));
      if (!fs::exists(place() / kFile)) continue;
      ++found;
      check();
    }
    return found;
  }
};

TEST_F(PluginInstallCrash, AtAnyCallLeavesNoPluginWithoutThePinOfItsBytes) {
  source();
  const int found = kill_everywhere([] {}, /*replace=*/false,
                                    [&] { EXPECT_EQ(read_pin(place() / kFile), sha256_of_file(place() / kFile)); });
  EXPECT_GE(found, 1);
}

TEST_F(PluginInstallCrash, AtAnyCallOfAReplacementLeavesOneOfTheTwoAndAPin) {
  const std::string older = sha256_of_file(source("test-older"));
  const std::string bytes = read_bytes(folder_ / "source" / kFile), newer = sha256_of_file(source());
  kill_everywhere(
      [&] {
        write_bytes(place() / kFile, bytes);
        write_bytes(pin_of(place() / kFile), pin_text(place() / kFile, older));
      },
      /*replace=*/true,
      [&] {
        const std::string now = sha256_of_file(place() / kFile), pin = read_pin(place() / kFile).value_or("none");
        EXPECT_TRUE(pin == newer || (pin == older && now == older)) << "an older pin beside a newer file, or none";
        EXPECT_TRUE(now == older || now == newer);
      });
}

// A power cut keeps what was synced: the pin before the plugin has its name.
TEST_F(PluginInstallCrash, LeavesThePinOnTheDiskBeforeThePlugin) {
  const fs::path file = source();
  fs::create_directory(place());
  const std::string plugin = (place() / kFile).string(), pin = pin_of(place() / kFile).string();

  std::vector<std::string> calls;
  for (const std::string& call : durability_calls([&] { install_plugins(file, place(), false); })) {
    const auto aside = call.find(".part-");
    const std::string what = call.substr(0, call.find(' '));
    const bool of_pin = call.find(".sha256") != std::string::npos;
    calls.push_back(what + (aside == std::string::npos ? " folder" : of_pin ? " pin" : " plugin"));
  }

  EXPECT_THAT(calls,
              ElementsAre("fsync pin", "rename pin", "fsync folder", "fsync plugin", "rename plugin", "fsync folder"));
}

TEST_F(PluginInstall, LeavesAPipeAloneThatStandsWhereThePluginWouldGo) {
  const fs::path file = source();
  fs::create_directory(place());
  ASSERT_EQ(::mkfifo((place() / kFile).c_str(), 0600), 0);

  EXPECT_THAT([&] { install_plugins(file, place(), true); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("libcapstan_plain.so: is not a file, so no plugin takes its place. Move it away.")));
  EXPECT_TRUE(fs::is_fifo(place() / kFile));
}

}  // namespace
}  // namespace capstan
