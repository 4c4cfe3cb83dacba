#include "capstan/sdk/output_folder.hpp"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.hpp"

namespace capstan::sdk {
namespace {

namespace fs = std::filesystem;

class OutputFolder : public ::testing::Test {
 protected:
  OutputFolder() : before_(fs::current_path()) {
    fs::create_directory(folder_ / "work");
    fs::current_path(folder_ / "work");
  }
  ~OutputFolder() override { fs::current_path(before_); }
  std::string path(const std::string& name) const { return fs::canonical(folder_.path()).string() + "/" + name; }

  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(OutputFolder, OutsideOfTheWorkingDirectoryIsNamedOnce) {
  const std::string made = "made the folder '" + path("other/runs/job") + "', all from '" + path("other") +
                           "' on, outside of the working "
                           "directory.";
  EXPECT_EQ(make_folder(path("other/runs/job/")), made);
  EXPECT_TRUE(fs::is_directory(folder_ / "other/runs/job"));
  EXPECT_EQ(make_folder(path("other/runs/job")), "");
  EXPECT_EQ(make_folder("../one"), "made the folder '" + path("one") + "' outside of the working directory.");
}

TEST_F(OutputFolder, BelowTheWorkingDirectoryIsNotNamed) {
  EXPECT_EQ(make_folder("runs/job"), "");
  EXPECT_EQ(make_folder(fs::current_path() / "..more"), "");
  EXPECT_TRUE(fs::is_directory("runs/job"));
  EXPECT_TRUE(fs::is_directory("..more"));
  std::ofstream("file") << "x";
  EXPECT_THROW(make_folder("file/below"), fs::filesystem_error);
}

}  // namespace
}  // namespace capstan::sdk
