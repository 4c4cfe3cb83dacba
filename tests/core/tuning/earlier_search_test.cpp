#include "core/tuning/earlier_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class EarlierSearch : public ::testing::Test {
 protected:
  EarlierSearch() {
    write("results/.lock", "1\n");
    write("results/tuning.json", "{}");
    write("results/summary.txt", "");
    write("results/z1_gas1_tmbspg2/exp.json", R"({"name": "z1_gas1_tmbspg2", "ds_config": {}})");
    write("results/z1_gas1_tmbspg2/stdout.log", "");
    write("results/z1_gas1_tmbspg2/metrics.json.part", "");
    fs::create_directories(folder_ / "results/z1_gas1_tmbspg4");
    write("described/z1_gas1_tmbspg2.json", R"({"name": "z1_gas1_tmbspg2", "ds_config": {}})");
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    write_bytes(folder_ / name, text);
  }
  void remove(bool had_lock = true) const {
    remove_earlier_search(folder_ / "results", folder_ / "described", folder_ / "results/.lock", had_lock);
  }
  /// Everything below the folder, links not followed.
  std::size_t entries() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::recursive_directory_iterator(folder_.path())) ++count;
    return count;
  }
  void expect_refused(const std::string& stranger, const std::string& key, bool had_lock = true) const {
    SCOPED_TRACE(stranger);
    const std::size_t before = entries();
    EXPECT_THAT([&] { remove(had_lock); },
                ThrowsMessage<ConfigError>(
                    AllOf(HasSubstr("autotuning.overwrite: would delete all that " + key + ", '"),
                          HasSubstr("/" + stranger +
                                    "' is not of an earlier search. Nothing was deleted. Move it away, or "
                                    "name a folder for the search alone in " +
                                    key + "."))));
    EXPECT_EQ(entries(), before);
  }

  TemporaryFolder folder_;
};

TEST_F(EarlierSearch, IsDeletedButForTheLock) {
  remove();

  EXPECT_TRUE(fs::exists(folder_ / "results/.lock"));
  EXPECT_EQ(entries(), 3u) << "the two folders and the lock";
}

TEST_F(EarlierSearch, IsNotTakenForWhatStandsBesideIt) {
  const std::pair<std::string, std::string> strangers[] = {
      {"results/c.json", ""},
      {"results/src", "/a.py"},
      {"results/z1_gas1_tmbspg2/notes.txt", ""},
      {"results/z1_gas1_tmbspg2/figures", "/loss.png"},
  };
  for (const auto& [stranger, file] : strangers) {
    write(stranger + file, "mine");
    expect_refused(stranger == "results/src" ? stranger + file : stranger, "autotuning.results_dir");
    fs::remove_all(folder_ / stranger);
  }
  for (const char* stranger : {"described/thesis.txt", "described/settings.json"}) {
    write(stranger, "{}");
    expect_refused(stranger, "autotuning.exps_dir");
    fs::remove(folder_ / stranger);
  }
  remove();
}

TEST_F(EarlierSearch, IsNotAFolderWithATrialsFilesAndAnotherName) {
  write("results/copy/exp.json", R"({"name": "z1_gas1_tmbspg2", "ds_config": {}})");

  expect_refused("results/copy", "autotuning.results_dir");
}

TEST_F(EarlierSearch, IsNotALink) {
  write("elsewhere/exp.json", R"({"name": "linked", "ds_config": {}})");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "results/linked");

  expect_refused("results/linked", "autotuning.results_dir");
}

TEST_F(EarlierSearch, HasLeftItsLock) {
  for (const char* name : {"tuning.json", "z1_gas1_tmbspg2", "z1_gas1_tmbspg4"}) {
    fs::remove_all(folder_ / "results" / name);
  }

  expect_refused("results/summary.txt", "autotuning.results_dir", /*had_lock=*/false);
}

TEST_F(EarlierSearch, MayHaveHadOneFolderForBoth) {
  write("results/z1_gas1_tmbspg2.json", R"({"name": "z1_gas1_tmbspg2", "ds_config": {}})");

  remove_earlier_search(folder_ / "results", folder_ / "results", folder_ / "results/.lock", true);

  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "results"), {}), 1);
}

}  // namespace
}  // namespace capstan::testing
