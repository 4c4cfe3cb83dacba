#include "core/run/interrupt.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "core/elastic/save_progress.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBound{1000};

TEST(InterruptedText, TellsHowToContinueWhereStepsAreLeft) {
  EXPECT_EQ(interrupted_text({1234, 5000, "ckpt", true}),
            "interrupted after step 1,234 of 5,000. Continue with --resume ckpt");
  EXPECT_EQ(interrupted_text({7, 40, "", false}),
            "interrupted after step 7 of 40. Nothing was saved: --save is not given.");
}

TEST(InterruptedText, TellsThatNothingIsLeftAfterTheLastStep) {
  EXPECT_EQ(interrupted_text({40, 40, "ckpt", false}),
            "interrupted after step 40 of 40, the last one: nothing is left to train.");
  EXPECT_EQ(interrupted_text({40, 40, "ckpt", true}),
            "interrupted after step 40 of 40, the last one: nothing is left to train. The evaluation at the end was "
            "left out: 'capstan eval --checkpoint ckpt' makes it up.");
  EXPECT_EQ(interrupted_text({40, 40, "", true}),
            "interrupted after step 40 of 40. Nothing was saved: --save is not given.");
}

/// The exit code of a process of its own that runs `body` within a part of the kind, after SIGTERM. 77: the part has
/// ended in its time.
int exit_code_of(Interrupt::Kind kind, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"CAPSTAN_INTERRUPT_SECONDS", "CAPSTAN_INTERRUPT_SAVE_SECONDS"}) setenv(name, "1", 1);
    Interrupt interrupt(false);
    {
      const Interrupt::Part part(interrupt, kind, [](const std::string&) {});
      raise(SIGTERM);
      body();
    }
    _exit(77);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void write_for(milliseconds time) {
  const std::vector<char> some(1 << 20);
  std::ofstream out("/dev/null", std::ios::binary);
  const auto end = Clock::now() + time;
  while (Clock::now() < end) out.write(some.data(), static_cast<std::streamsize>(some.size())).flush();
}

TEST(Interrupt, LetsASaveGoOnForAsLongAsItWrites) {
  EXPECT_EQ(exit_code_of(Interrupt::Kind::kSave, [] { write_for(3 * kBound); }), 77);
}

TEST(Interrupt, GivesUpASaveThatWritesNothingAndAStepThatDoesNotEnd) {
  EXPECT_EQ(exit_code_of(Interrupt::Kind::kSave, [] { pause(); }), 130);
  EXPECT_EQ(exit_code_of(Interrupt::Kind::kStep, [] { write_for(std::chrono::minutes(10)); }), 130);
}

TEST(SaveProgress, CountsWhatAProcessWrites) {
  SaveProgress progress;
  EXPECT_FALSE(progress.got_on());
  const std::vector<char> some(256 << 10);
  std::ofstream("/dev/null", std::ios::binary).write(some.data(), static_cast<std::streamsize>(some.size())).flush();
  EXPECT_TRUE(progress.got_on());
  EXPECT_FALSE(progress.got_on());
  EXPECT_EQ(written_by(0), 0);
}

}  // namespace
}  // namespace capstan
