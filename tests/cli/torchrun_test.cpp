// Restarts by torchrun, where there is one.

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/cli/programs.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

TEST(Torchrun, StartsAgainAfterAKilledRankAndTheRunGoesOn) {
  const std::string program = test::reader_program("torchrun", "CAPSTAN_TORCHRUN");
  if (program.empty()) GTEST_SKIP() << test::kNoReaders;
  TemporaryFolder folder;
  write_bytes(folder / "text.txt", some_text());
  write_bytes(folder / "config.json",
              R"({"train_batch_size": 8, "steps_per_print": 1, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "capstan": {"model": {"type": "mlp", "params": {"d": 8, "hidden": 16, "seq": 16}}}})");
  // In its first life, rank 1 is killed once a checkpoint is there.
  write_bytes(folder / "start.sh", R"(
resume=; [ -e ckpt/latest ] && resume='--resume ckpt'
)" + kCapstan + R"( train --config config.json --data text.txt --steps "$1" --save ckpt --save-every 5 $resume &
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && [ "$RANK" = 1 ]; then
  while [ ! -e ckpt/latest ] && kill -0 $!; do sleep 0.01; done
  kill -9 $!
fi
wait $!
)");
  const auto train = [&](const char* steps, const char* restarts) {
    return run_process(
        {program, "--no-python", "--nproc-per-node", "2", "--max-restarts", restarts, "--master-addr", "127.0.0.1",
         "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "sh", "start.sh", steps},
        {.environment = {"OMP_NUM_THREADS=1"}, .folder = folder.path()});
  };
  const ProcessResult result = train("400", "1");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("resumed from ckpt/global_step"));
  EXPECT_EQ(read_bytes(folder / "ckpt" / "latest"), "global_step400");
}

}  // namespace
}  // namespace capstan::cli
