// What a run says of a plugin that ends it, and how it ends.

#include <gmock/gmock.h>

#include <csignal>

#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kConfig = R"({
  "train_batch_size": 8,
  "optimizer": {"type": "SaboteurSGD"},
  "scheduler": {"type": "SaboteurLR"},
  "capstan": {"model": "mlp", "monitors": [{"type": "saboteur_monitor"}], "plugins": {"path": "plugins"}}
})";
constexpr const char* kPlugin = CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins/libcapstan_scheduler_saboteur.so";

struct Sabotage {
  const char* name;
  const char* plan;       // of CAPSTAN_SABOTAGE
  int signal, exit_code;  // how the process ends
  const char* said;       // a regular expression
};

std::ostream& operator<<(std::ostream& out, const Sabotage& sabotage) { return out << sabotage.plan; }

/// A run of four steps that saves after each, with a copy of the plugin that it may destroy.
class Saboteur : public ::testing::TestWithParam<Sabotage> {
 protected:
  Saboteur() {
    write_bytes(folder_ / "config.json", kConfig);
    write_bytes(folder_ / "text.txt", some_text());
    std::filesystem::create_directory(folder_ / "plugins");
    std::filesystem::copy_file(kPlugin, folder_ / "plugins/libcapstan_saboteur.so");
  }
  ProcessResult train(const std::string& plan, std::vector<std::string> words = {"train"}) const {
    words.insert(words.end(), {"--config", "config.json", "--data", "text.txt", "--steps", "4", "--save", "ckpt",
                               "--save-every", "1"});
    return run_capstan(folder_, words, {.environment = {"CAPSTAN_SABOTAGE=" + plan}});
  }

  TemporaryFolder folder_;
};

TEST_P(Saboteur, IsNamedAndTheProcessEndsAsItWould) {
  const Sabotage sabotage = GetParam();

  const ProcessResult result = train(sabotage.plan);

  EXPECT_THAT(result.err, ContainsRegex(std::string("(^|\n)") + sabotage.said + "\n"));
  EXPECT_THAT(result.err, HasSubstr("plugin saboteur (plugins/libcapstan_saboteur.so)"));
  EXPECT_EQ(result.signal, sabotage.signal);
  EXPECT_EQ(result.exit_code, sabotage.exit_code);
}

#define PLUGIN "plugin saboteur \\(plugins/libcapstan_saboteur.so\\)"
#define RATE PLUGIN ", scheduler 'SaboteurLR', function rate, step 2; the last checkpoint is ckpt/global_step1\\."
#define WRITE                                                                                      \
  PLUGIN                                                                                           \
  ", monitor 'saboteur_monitor', function write, step [1-5]; (the last checkpoint is|there is no " \
  "checkpoint)[^.]*\\."
#define TELL " Tell the plugin's author\\."

INSTANTIATE_TEST_SUITE_P(
    EverySabotage, Saboteur,
    ::testing::Values(
        Sabotage{"SegvInRate", "segv in rate", SIGSEGV, -1, "capstan: error: SIGSEGV in " RATE TELL},
        Sabotage{"FpeInRate", "fpe in rate", SIGFPE, -1, "capstan: error: SIGFPE in " RATE TELL},
        Sabotage{"FileCutShort", "truncate in rate", SIGBUS, -1,
                 "capstan: error: SIGBUS in " RATE
                 " Its file was cut short, or could not be read, while the run used it. "
                 "Replace the file of a plugin by renaming another to its name."},
        Sabotage{"ThreadOfItsOwn", "thread in rate", SIGSEGV, -1,
                 "capstan: error: SIGSEGV in " PLUGIN ", outside of a call, step 2; the last checkpoint is "
                 "ckpt/global_step1." TELL},
        Sabotage{"AbortInMonitor", "abort in write", SIGABRT, -1, "capstan: error: SIGABRT in " WRITE TELL},
        Sabotage{"NullWriteInMonitor", "segv in write", SIGSEGV, -1, "capstan: error: SIGSEGV in " WRITE TELL},
        Sabotage{"StackOfMonitor", "overflow in write", SIGSEGV, -1, "capstan: error: SIGSEGV in " WRITE TELL},
        Sabotage{"ExitInMonitor", "exit in write", 0, 5, "capstan: error: exit\\(5\\) was called in " WRITE TELL},
        Sabotage{"ExitInUpdate", "exit in update", 0, 5,
                 "capstan: error: exit\\(5\\) was called in " PLUGIN ", optimizer 'SaboteurSGD', function update, step "
                 "3; the last checkpoint is ckpt/global_step2\\." TELL},
        Sabotage{"ExitInStaticConstructor", "exit in load", 0, 5,
                 "capstan: error: exit\\(5\\) was called in " PLUGIN ", as it was loaded\\." TELL},
        Sabotage{"SegvInDestructor", "segv in destroy", SIGSEGV, -1,
                 "capstan: error: SIGSEGV in " PLUGIN ", optimizer 'SaboteurSGD', function destroy, step 5; the last "
                 "checkpoint is ckpt/global_step4\\." TELL}),
    [](const ::testing::TestParamInfo<Sabotage>& info) { return info.param.name; });

TEST_F(Saboteur, IsNamedWithTheRank) {
  const ProcessResult result = train("ill in rate of rank 1", {"launch", "-n", "2", "train"});

  EXPECT_THAT(result.err, HasSubstr("SIGILL in plugin saboteur (plugins/libcapstan_saboteur.so), scheduler "
                                    "'SaboteurLR', function rate, rank 1, step 2; the last checkpoint is "
                                    "ckpt/global_step1. Tell the plugin's author.\n"));
  EXPECT_NE(result.exit_code, 0);
}

TEST_F(Saboteur, IsNotNamedWhereItDoesNothing) {
  const ProcessResult result = train("");

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("error")));
}

}  // namespace
}  // namespace capstan::cli
