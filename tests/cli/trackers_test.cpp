#include "cli/trackers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include "tests/support/temporary_folder.hpp"

namespace capstan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Optional;

class Trackers : public ::testing::Test {
 protected:
  ~Trackers() override { unsetenv("CAPSTAN_PYTHON"); }
  /// What a Python says that has these packages.
  void python_says(const std::string& text) const {
    const auto file = folder_ / "python3";
    write_bytes(file, "#!/bin/sh\ncat <<'END'\n" + text + "END\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    setenv("CAPSTAN_PYTHON", file.c_str(), 1);
  }
  TemporaryFolder folder_;
};

TEST_F(Trackers, HaveThePackagesThatTheirHelpersAskFor) {
  const std::filesystem::path monitors = CAPSTAN_TEST_SOURCE_DIR "/plugins/monitors";
  for (const TrackerPackage& tracker : tracker_packages()) {
    const std::string helper = read_bytes(monitors / tracker.monitor / (std::string(tracker.monitor) + "_helper.py"));
    EXPECT_THAT(helper,
                ::testing::HasSubstr("serve(\"" + std::string(tracker.package) + "\", \"" + tracker.oldest + "\""));
  }
  std::size_t helpers = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(monitors)) {
    helpers += entry.path().filename().string().ends_with("_helper.py");
  }
  EXPECT_EQ(tracker_packages().size(), helpers);
}

TEST_F(Trackers, AreAskedForInOnePython) {
  python_says("/opt/python3\n0.17.5\n\n");
  const PythonPackages there = ask_python({"wandb", "comet_ml"});
  EXPECT_EQ(there.python, "/opt/python3");
  EXPECT_THAT(there.versions, ElementsAre(Optional(Eq("0.17.5")), Eq(std::nullopt)));
  setenv("CAPSTAN_PYTHON", "/nowhere/python3", 1);
  const PythonPackages none = ask_python({"wandb"});
  EXPECT_EQ(none.python, "/nowhere/python3");
  EXPECT_THAT(none.versions, ElementsAre(Eq(std::nullopt)));
}

TEST_F(Trackers, TellWhatThePythonOfThisMachineHas) {
  setenv("CAPSTAN_PYTHON", "/usr/bin/python3", 1);
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no /usr/bin/python3";
  const PythonPackages there = ask_python({"a-package-that-nobody-has"});
  EXPECT_EQ(there.python, "/usr/bin/python3");
  EXPECT_THAT(there.versions, ElementsAre(Eq(std::nullopt)));
}

TEST_F(Trackers, SayWhatIsMissingOrTooOld) {
  const TrackerPackage& wandb = tracker_packages().front();
  EXPECT_EQ(tracker_fault(wandb, "python3", std::nullopt), "the Python package 'wandb' is not installed for python3");
  EXPECT_EQ(tracker_fault(wandb, "python3", "0.9.7"),
            "the Python package 'wandb' is 0.9.7 for python3, and 0.16.0 is the oldest that works");
  for (const char* version : {"0.16.0", "0.16", "0.100.1", "1.0rc1"}) EXPECT_EQ(tracker_fault(wandb, "p", version), "");
  EXPECT_EQ(install_command(wandb, "python3"), "python3 -m pip install 'wandb>=0.16.0'");
}

}  // namespace
}  // namespace capstan::cli
