#include "core/comm/run_identity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

namespace capstan {
namespace {

const Environment kPlain = [](const char*) { return std::nullopt; };
/// As torchrun's processes have it.
const Environment kTorchrun = [](const char* name) {
  return name == std::string("TORCHELASTIC_RUN_ID") ? std::optional<std::string>("none") : std::nullopt;
};

/// The text that `make` returns in a process of its own.
std::string in_another_process(const std::function<std::string()>& make) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = make();
    _exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(200, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

TEST(RunId, IsOfSixteenDigitsAndAnotherOneEachTime) {
  const std::string first = new_run_id(kPlain), second = new_run_id(kPlain);
  EXPECT_THAT(first, ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(first, second);
  EXPECT_NE(in_another_process([] { return new_run_id(kPlain); }),
            in_another_process([] { return new_run_id(kPlain); }));
}

TEST(RunId, IsTheSameInEveryProcessThatOneAgentOfTorchrunStarts) {
  const auto two = [] { return new_run_id(kTorchrun) + new_run_id(kTorchrun); };
  const std::string first = in_another_process(two);

  EXPECT_EQ(first, in_another_process(two));
  ASSERT_EQ(first.size(), 32u);
  EXPECT_NE(first.substr(0, 16), first.substr(16)) << "two engines of one process";
  EXPECT_NE(first, in_another_process([&] { return in_another_process(two); })) << "another process has started it";
}

TEST(RestartingParent, IsNamedWhereThereIsOne) {
  EXPECT_EQ(restarting_parent(kPlain), "");
  EXPECT_THAT(restarting_parent(kTorchrun), ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_EQ(restarting_parent(kTorchrun), restarting_parent(kTorchrun));
}

}  // namespace
}  // namespace capstan
