#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/errors.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kMebibyte = 1 << 20;
constexpr const char* kModel = R"("layers": 2, "d": 96, "heads": 4, "seq": 64)";
constexpr std::uint64_t kParameters = 279'168;  // 2.1 MiB of Adam's state
constexpr const char* kThreeSubGroups = R"("zero_optimization": {"stage": 0, "sub_group_size": 100000})";

std::string file_state(const std::filesystem::path& folder, std::uint64_t memory = kMebibyte) {
  return R"("offload": {"optimizer": {"type": "file_state", "params": {"folder": ")" + folder.string() +
         R"(", "memory": )" + std::to_string(memory) + "}}}";
}

TEST(FileStateProbe, IsAdamInMemoryBitByBit) {
  const TemporaryFolder folder;
  ProbeRun files(file_state(folder.path()), kThreeSubGroups, kModel), memory("", "", kModel);

  EXPECT_EQ(files.steps(10), memory.steps(10));

  for (const NamedTensor& item : memory.engine->model().parameters()) {
    EXPECT_TRUE(files.parameter(item.name).equal(item.tensor)) << item.name;
  }
}

TEST(FileStateProbe, KeepsTilesInFilesOfOneMebibyteAtMost) {
  const TemporaryFolder folder;
  ProbeRun run(file_state(folder.path()), kThreeSubGroups, kModel);
  run.step();
  const TemporaryFolder checkpoint;
  run.engine->save_checkpoint(checkpoint.path().string());  // reads all files, so none is still being written

  std::uint64_t files = 0, bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_LE(file.file_size(), kMebibyte) << file.path();
    ++files;
    bytes += file.file_size();
  }
  EXPECT_GE(files, 3u);
  EXPECT_GE(bytes, kParameters * 8);
}

TEST(FileStateProbe, ResumesFromACheckpointBitByBit) {
  const TemporaryFolder folder, other_folder, checkpoints;
  ProbeRun whole(file_state(folder.path()), kThreeSubGroups, kModel);
  whole.steps(4);
  whole.engine->save_checkpoint(checkpoints.path().string());
  const auto expected = whole.steps(4);

  ProbeRun resumed(file_state(other_folder.path()), kThreeSubGroups, kModel);
  resumed.engine->load_checkpoint(checkpoints.path().string());

  EXPECT_EQ(resumed.steps(4), expected);
}

TEST(FileStateProbe, RefusesASubGroupThatNeedsMoreMemory) {
  const TemporaryFolder folder;

  EXPECT_THAT([&] { ProbeRun run(file_state(folder.path(), 1000), kThreeSubGroups, kModel); },
              ThrowsMessage<RuntimeFault>(HasSubstr("1000 are allowed. Lower zero_optimization.sub_group_size.")));
}

TEST(FileStateProbe, ReportsAFileThatIsLost) {
  const TemporaryFolder folder;
  ProbeRun run(file_state(folder.path()), kThreeSubGroups, kModel);
  run.step();
  std::filesystem::remove(folder.path() / "1.state");

  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<RuntimeFault>(HasSubstr("1.state: cannot be opened: No such file or directory.")));
}

TEST(FileStateProbe, ReportsAFolderThatIsMissing) {
  ProbeRun run(file_state("/nowhere"), kThreeSubGroups, kModel);
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<RuntimeFault>(HasSubstr("/nowhere/0.state: cannot be opened")));
}

}  // namespace
}  // namespace capstan
