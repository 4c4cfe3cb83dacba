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

TEST_F(Trackers, DeclareThePackagesThatTheirHelpersAskFor) {
  const std::filesystem::path monitors = CAPSTAN_TEST_SOURCE_DIR "/plugins/monitors";
  int helpers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(monitors)) {
    const std::string name = entry.path().filename().string();
    const std::filesystem::path helper = entry.path() / (name + "_helper.py");
    if (!std::filesystem::exists(helper)) continue;
    ++helpers;
    const std::string manifest = read_bytes(entry.path() / "plugin.toml");
    std::smatch found;
    ASSERT_TRUE(std::regex_search(manifest, found, std::regex("\npython_package = \"([^\"]+)\"\n"))) << name;
    const PythonPackage package = python_package(found[1]);
    EXPECT_THAT(read_bytes(helper), ::testing::HasSubstr("serve(\"" + package.name + "\", \"" + package.oldest + "\""));
  }
  EXPECT_EQ(helpers, 2);
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
  const PythonPackage wandb = python_package("wandb>=0.16.0");
  EXPECT_EQ(package_fault(wandb, "python3", std::nullopt), "the Python package 'wandb' is not installed for python3");
  EXPECT_EQ(package_fault(wandb, "python3", "0.9.7"),
            "the Python package 'wandb' is 0.9.7 for python3, and 0.16.0 is the oldest that works");
  for (const char* version : {"0.16.0", "0.16", "0.100.1", "1.0rc1"}) EXPECT_EQ(package_fault(wandb, "p", version), "");
  EXPECT_EQ(install_command(wandb, "python3"), "python3 -m pip install 'wandb>=0.16.0'");
}

TEST_F(Trackers, TakeAnyVersionWhereTheManifestNamesNone) {
  const PythonPackage aim = python_package("aim");
  EXPECT_EQ(package_fault(aim, "python3", "0.0.1"), "");
  EXPECT_EQ(install_command(aim, "python3"), "python3 -m pip install 'aim'");
}

}  // namespace
}  // namespace capstan::cli
