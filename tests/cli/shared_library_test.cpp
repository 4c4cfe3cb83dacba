#include "cli/shared_library.hpp"

#include <gmock/gmock.h>

#include "cli/version.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/registry/build_id.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;

TEST(SharedLibrary, ReadsWhatALibraryNeedsAndWhereItLooks) {
  const std::string torch = std::string(built_with().torch_lib_dir);
  const auto library = read_shared_library(torch + "/libtorch_cuda.so");

  ASSERT_TRUE(library);
  EXPECT_THAT(library->needed, Contains("libnccl.so.2"));
  EXPECT_THAT(library->needed, Contains("libtorch_cpu.so"));
  EXPECT_EQ(find_shared_library("libtorch_cpu.so", *library), torch + "/libtorch_cpu.so");
}

TEST(SharedLibrary, FindsTheSystemsLibrariesAndNothingElse) {
  EXPECT_TRUE(find_shared_library("libc.so.6", {}));
  EXPECT_FALSE(find_shared_library("libnobody-has-this.so.9", {}));
}

TEST(SharedLibrary, IsNothingForOtherFiles) {
  const TemporaryFolder folder;
  write_bytes(folder / "text", "no library");

  EXPECT_FALSE(read_shared_library(folder / "text"));
  EXPECT_FALSE(read_shared_library(folder / "missing"));
}

TEST(BuildId, IsReadFromTheFile) {
  const BuiltWith built = built_with();

  EXPECT_EQ(build_id_of(std::string(built.torch_lib_dir) + "/libc10.so"), built.torch_build_id);
  EXPECT_EQ(build_id_of("/nowhere"), "");
}

TEST(CheckpointName, SplitsTheTagOffUnlessTheFolderIsNamedSo) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a:b");

  EXPECT_EQ(CheckpointName::parse("ckpt").dir, "ckpt");
  EXPECT_EQ(CheckpointName::parse("ckpt").tag, "");
  EXPECT_EQ(CheckpointName::parse("ckpt:global_step20").dir, "ckpt");
  EXPECT_EQ(CheckpointName::parse("ckpt:global_step20").tag, "global_step20");
  EXPECT_EQ(CheckpointName::parse((folder / "a:b").string()).tag, "");
}

}  // namespace
}  // namespace capstan::cli
