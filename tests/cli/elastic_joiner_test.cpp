// Processes that come later to an elastic launch: whom it takes, and when.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/shifted_clock.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

using ElasticJoiner = Elastic;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// Takes a file's place at once, as an installation does.
void put_in_place(const fs::path& file, const std::string& bytes) {
  const fs::path aside = file.string() + ".new";
  fs::remove(aside);
  write_bytes(aside, bytes);
  fs::permissions(aside, fs::perms::owner_all);
  fs::rename(aside, file);
}

/// The file as another build would have made it: its build id is another one.
std::string of_another_build(const fs::path& file) {
  std::string bytes = read_bytes(file);
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);
  const std::size_t at = bytes.find(note);
  if (at == std::string::npos) throw std::runtime_error(file.string() + " has no build id");
  bytes[at + note.size()] = static_cast<char>(bytes[at + note.size()] ^ 1);
  return bytes;
}

/// Programs of a test's own, beside the libraries and plugins of the build.
fs::path install(const fs::path& prefix) {
  fs::create_directories(prefix / "bin");
  fs::create_directories(prefix / "libexec");
  fs::copy_file(kCapstan, prefix / "bin/capstan");
  fs::copy_file(kEngine, prefix / "libexec/capstan-engine");
  fs::create_directory_symlink(CAPSTAN_TEST_BUILD_DIR "/lib", prefix / "lib");
  return prefix;
}

/// LibTorch's files by links, which can be replaced.
fs::path link_torch(const fs::path& folder) {
  const std::string version = run_process({kCapstan, "--version"}).out;
  const std::string mark = ") in ";
  std::string libraries = version.substr(version.find(mark) + mark.size());
  libraries.erase(libraries.find_last_not_of('\n') + 1);
  fs::create_directories(folder / "lib");
  for (const auto& entry : fs::directory_iterator(libraries)) {
    fs::create_symlink(entry.path(), folder / "lib" / entry.path().filename());
  }
  return folder;
}

constexpr const char* kNoMore = "3 processes in a row ended before they could join. No more are started.";

TEST_F(ElasticJoiner, WithAnotherElasticitySectionAndModelIsRefusedAndTheRunGoesOn) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("joined", kEndless));
  ASSERT_TRUE(run.await_waiting(1));
  ASSERT_TRUE(run.await(10));
  std::string text = read_bytes(folder_ / "joined.json");
  text = replaced(text, R"("min_time": 0)", R"("min_time": 1)");
  put_in_place(folder_ / "joined.json", replaced(text, R"("d": 16)", R"("d": 32)"));
  run.kill_rank(1);
  ASSERT_TRUE(run.await_output(kNoMore));
  const ProcessResult result = end_and_compare(run, "joined", "2");
  EXPECT_THAT(result.out, HasSubstr("1 process lost, "));
  EXPECT_EQ(count_of(result.err,
                     "the configuration (elasticity, capstan) and the model have changed since the launch began: this "
                     "process does not join. Undo the change, or launch anew."),
            3)
      << result.err;
}

TEST_F(ElasticJoiner, OfAnotherBuildIsRefusedAndTheRunGoesOn) {
  const fs::path prefix = install(folder_ / "installed");
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("joined", kEndless),
                 {.program = {(prefix / "bin/capstan").string()}});
  ASSERT_TRUE(run.await_waiting(1));
  ASSERT_TRUE(run.await(10));
  put_in_place(prefix / "libexec/capstan-engine", of_another_build(kEngine));
  run.kill_rank(0);
  ASSERT_TRUE(run.await_output(kNoMore));
  const ProcessResult result = end_and_compare(run, "joined", "2");
  EXPECT_THAT(result.err, ContainsRegex("Capstan .[0-9.]+ [0-9a-f]+ [^)]*, which was [0-9.]+ [0-9a-f]+ [^)]*. has "
                                        "changed since the launch began: this process does not join"));
}

TEST_F(ElasticJoiner, WithAnotherLibTorchIsRefusedAndTheRunGoesOn) {
  const fs::path torch = link_torch(folder_ / "torch");
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("joined", kEndless),
                 {.environment = {"CAPSTAN_TORCH_DIR=" + torch.string()}});
  ASSERT_TRUE(run.await_waiting(1));
  ASSERT_TRUE(run.await(10));
  put_in_place(torch / "lib/libc10.so", of_another_build(torch / "lib/libc10.so"));
  run.kill_rank(1);
  ASSERT_TRUE(run.await_output(kNoMore));
  // The processes that live have another generation of steps before them.
  ASSERT_TRUE(run.await(run.step() + 10, 2));
  run.send(SIGTERM);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, ContainsRegex("LibTorch [0-9.+a-z]+ .build [0-9a-f]+. was not found:"));
  EXPECT_THAT(result.err,
              ContainsRegex("CAPSTAN_TORCH_DIR: " + (torch / "lib").string() + ": another LibTorch, build [0-9a-f]+"));
}

/// The launcher's clock is set forward, so that nobody has to wait for a minute.
TEST_F(ElasticJoiner, WaitsForMinTimeAndTakesTheLostOnesPlaceAtOnce) {
  ShiftedClock clock(folder_ / "clock");
  ElasticRun run(folder_, {"--elastic", "1:3", "-n", "2"}, train("timed", kEndless, {"--set", "elasticity.min_time=1"}),
                 {.environment = clock.environment(/*alone=*/true)});
  const auto await_ready = [&](std::int64_t number) {
    return eventually([&] { return run.has_ended() || run.folder()->is_ready(number); });
  };
  ASSERT_TRUE(run.await(10));
  run.send(SIGUSR1);
  ASSERT_TRUE(await_ready(2));
  ASSERT_TRUE(run.await(run.step() + 30));
  EXPECT_EQ(run.world()->generation, 1);
  EXPECT_EQ(run.world()->members, (std::vector<std::int64_t>{0, 1}));
  run.kill_rank(1);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_EQ(run.world()->members, (std::vector<std::int64_t>{0, 2}));
  ASSERT_TRUE(await_ready(3));
  ASSERT_TRUE(run.await(run.step() + 30));
  EXPECT_EQ(run.world()->generation, 2);
  clock.set_steady(60);
  ASSERT_TRUE(run.await(0, 3));
  EXPECT_EQ(run.world()->members, (std::vector<std::int64_t>{0, 2, 3}));
  const int steps = end_of(run, "timed");
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("generation 3: 3 processes go on from step .*process [0-9]+ has joined"));
  expect_each_sample_once("timed", result.out, steps);
}

}  // namespace
}  // namespace capstan::cli
