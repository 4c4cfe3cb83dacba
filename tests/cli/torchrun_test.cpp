// Restarts by torchrun, where there is one.

#include <gmock/gmock.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
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

class TorchrunHosts : public Elastic {
 protected:
  /// An agent with one process, as of a host of its own.
  std::unique_ptr<Process> agent(const std::string& program, std::vector<std::string> train) const {
    std::vector<std::string> words = {program,
                                      "--no-python",
                                      "--nnodes=1:3",
                                      "--nproc-per-node=1",
                                      "--max-restarts=20",
                                      "--rdzv-backend=c10d",
                                      "--rdzv-id=" + std::to_string(getpid()),
                                      "--rdzv-endpoint=127.0.0.1:" + std::to_string(port_),
                                      "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1",
                                      "--monitor-interval=0.1",
                                      "--local-addr=127.0.0.1",
                                      kCapstan,
                                      "train"};
    words.insert(words.end(), train.begin(), train.end());
    ProcessOptions options;
    // Without it an agent of torch 2.11 that joins waits for ever: those before it tell nobody again where to meet.
    options.environment = {"OMP_NUM_THREADS=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"};
    options.folder = folder_.path();
    return std::make_unique<Process>(words, options);
  }
  /// So many rows of losses have been written.
  bool await_rows(std::size_t rows) const {
    return eventually([&] {
      return std::filesystem::exists(folder_ / "log-csv/Train_Samples_train_loss.csv") &&
             values_of("log", "Train_Samples_train_loss").size() >= rows;
    });
  }
  std::size_t rows() const { return values_of("log", "Train_Samples_train_loss").size(); }
  /// The newest number of processes that the run has told.
  double processes() const {
    const auto values = values_of("log", "Train_Elastic_processes");
    return values.empty() ? 0 : values.rbegin()->second;
  }

  const int port_ = free_port();
};

TEST_F(TorchrunHosts, JoinLeaveAndAreKilledAndTheRunGoesOnFromMemory) {
  const std::string program = test::reader_program("torchrun", "CAPSTAN_TORCHRUN");
  if (program.empty()) GTEST_SKIP() << test::kNoReaders;
  const std::vector<std::string> slow = {"--set", "optimizer.params.lr=1e-5", "--set", "scheduler=null"};
  std::vector<std::string> words = train("log", kEndless, slow);
  // The first one keeps the place where agents meet: torchrun ends with it.
  auto first = agent(program, words);
  ASSERT_TRUE(await_rows(20));
  auto second = agent(program, words);  // joins
  ASSERT_TRUE(eventually([&] { return processes() == 2; }));
  auto third = agent(program, words);  // joins
  ASSERT_TRUE(eventually([&] { return processes() == 3; }));
  ASSERT_TRUE(await_rows(rows() + 20));
  third->send(SIGKILL);
  std::string out = third->wait().out;
  ASSERT_TRUE(eventually([&] { return processes() == 2; }));
  ASSERT_TRUE(await_rows(rows() + 20));
  second->send(SIGTERM);  // leaves
  out += second->wait().out;
  ASSERT_TRUE(eventually([&] { return processes() == 1; }));
  ASSERT_TRUE(await_rows(rows() + 20));
  first->send(SIGTERM);
  out += first->wait().out;
  EXPECT_THAT(out, ContainsRegex("3 processes go on from step [1-9][0-9,]+ .torchrun has started"));
  EXPECT_THAT(out, ContainsRegex("1 process goes on from step [1-9][0-9,]+ .torchrun has started"));

  const auto losses = values_of("log", "Train_Samples_train_loss");
  ElasticRun straight(folder_, {"--elastic", "1:1"}, train("straight", static_cast<int>(losses.size()), slow));
  ASSERT_EQ(straight.wait().exit_code, 0);
  const auto wanted = values_of("straight", "Train_Samples_train_loss");
  ASSERT_EQ(losses.size(), wanted.size());
  for (const auto& [sample, loss] : wanted) ASSERT_NEAR(losses.at(sample), loss, 1e-4 * std::abs(loss)) << sample;
}

}  // namespace
}  // namespace capstan::cli
