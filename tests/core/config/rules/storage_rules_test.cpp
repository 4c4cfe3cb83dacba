#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/config/config.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Root may write everywhere: while this lives, root is somebody else.
class Unprivileged {
 public:
  Unprivileged() {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, 0) != 0) throw std::runtime_error("setresuid");
  }
  ~Unprivileged() {
    if (::geteuid() == kNobody && ::setresuid(0, 0, 0) != 0) std::abort();
  }

 private:
  static constexpr uid_t kNobody = 65534;
};

PluginIndex with_nvme() {
  constexpr const char* kManifest =
      "schema = 1\nname = \"disk\"\nversion = \"1.0.0\"\nabi.plugin = \"1.0\"\n"
      "abi.torch.tier = \"none\"\n[[components]]\nkind = \"offload\"\ntype = \"nvme\"\n"
      "params.nvme_path = {type = \"path\", required = true}\n";
  return PluginIndex::of({{"disk.so", PluginManifest::parse(kManifest, "disk")}});
}

std::string errors(const fs::path& nvme_path) {
  Json document = Json::parse(R"({"train_batch_size": 1, "zero_optimization": {"stage": 3,
    "offload_param": {"device": "nvme"}}})");
  (*document.find("zero_optimization")->find("offload_param"))["nvme_path"] = nvme_path.string();
  const ConfigReading reading = read_config({document.dump(), "test.json", false}, ConfigContext(), with_nvme());
  std::string text;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) text += problem.path + ": " + problem.message + "\n";
  }
  return text;
}

class StorageRules : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "capstan_storage_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    fs::permissions(folder_,
                    fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  fs::path folder_;
};

TEST_F(StorageRules, RefuseAnNvmePathThatCannotBeWritten) {
  const Unprivileged somebody;

  EXPECT_EQ(errors(folder_), "zero_optimization.offload_param.nvme_path: \"" + folder_.string() +
                                 "\" is not writable by this user. Name a folder that can be written.\n");
}

TEST_F(StorageRules, RefuseAnNvmePathThatCannotBeCreated) {
  const Unprivileged somebody;

  EXPECT_EQ(errors(folder_ / "new/swap"), "zero_optimization.offload_param.nvme_path: \"" +
                                              (folder_ / "new/swap").string() +
                                              "\" does not exist and cannot be created: " + folder_.string() +
                                              " is not writable by this user. Name a folder that can be written.\n");
}

TEST_F(StorageRules, RefuseAnEmptyNvmePath) {
  EXPECT_THAT(errors(""), HasSubstr("nvme_path: is empty, but the device is nvme. Name a folder that can be written."));
}

TEST_F(StorageRules, RefuseALinkThatLeadsNowhere) {
  fs::permissions(folder_, fs::perms::all);
  fs::create_symlink("/nowhere/at/all", folder_ / "link");
  for (const fs::path& path : {folder_ / "link", folder_ / "link/below/it"}) {
    EXPECT_EQ(errors(path), "zero_optimization.offload_param.nvme_path: \"" + path.string() +
                                "\" cannot be a folder: " + (folder_ / "link").string() +
                                " is a link to /nowhere/at/all, which does not exist. Name a folder that can be "
                                "written.\n");
  }
}

TEST_F(StorageRules, AcceptAFolderThatCanBeCreated) {
  fs::permissions(folder_, fs::perms::all);

  EXPECT_EQ(errors(folder_ / "new/swap"), "");
}

TEST_F(StorageRules, AcceptANameInTheWorkingFolderThatCanBeCreated) {
  fs::permissions(folder_, fs::perms::all);
  const fs::path before = fs::current_path();
  fs::current_path(folder_);

  EXPECT_EQ(errors("swap"), "");
  EXPECT_EQ(errors("new/swap"), "");
  fs::current_path(before);
}

}  // namespace
}  // namespace capstan::testing
