#include "core/registry/guilty_plugin.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "core/registry/call_in_progress.hpp"

namespace capstan {
namespace {

constexpr PluginFunction kUpdate = {"plugin acme (/opt/libacme.so), optimizer 'Acme'", "update"};
constexpr PluginFunction kLayer = {"plugin acme (/opt/libacme.so), observer 'Acme'", "layer"};

// Each body runs in a process of its own.
void segfault() { raise(SIGSEGV); }

TEST(GuiltyPluginDeathTest, IsNamedInOneLineAndTheSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        name_guilty_plugins();
        note_rank(3, 4);
        note_step(12);
        note_checkpoint("ckpt/global_step9");
        note_checkpoint("ckpt/global_step10");
        const CallInProgress call(kUpdate);
        segfault();
      },
      testing::KilledBySignal(SIGSEGV),
      "^capstan: error: SIGSEGV in plugin acme \\(/opt/libacme.so\\), optimizer 'Acme', function update, rank 3, step "
      "12; "
      "the last checkpoint is ckpt/global_step10\\. Tell the plugin's author\\.\n$");
}

TEST(GuiltyPluginDeathTest, IsFollowedByTheHandlerThatWasThere) {
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, [](int) { _exit(77); });
        name_guilty_plugins();
        name_guilty_plugins();  // does nothing
        const CallInProgress call(kUpdate);
        segfault();
      },
      testing::ExitedWithCode(77), "^capstan: error: SIGSEGV in plugin acme .*, function update\\. Tell");
}

TEST(GuiltyPluginDeathTest, IsTheOneOfTheInnermostCall) {
  EXPECT_EXIT(
      {
        name_guilty_plugins();
        const CallInProgress outer(kUpdate);
        { const CallInProgress over(kLayer); }
        const CallInProgress inner(kLayer);
        std::abort();
      },
      testing::KilledBySignal(SIGABRT), "SIGABRT in plugin acme .*observer 'Acme', function layer\\.");
}

TEST(GuiltyPluginDeathTest, IsNobodyOutsideOfCallsWhoseFunctionsAreNamed) {
  EXPECT_EXIT(
      {
        name_guilty_plugins();
        note_rank(1, 2);
        { const CallInProgress over(kUpdate); }
        segfault();
      },
      testing::KilledBySignal(SIGSEGV),
      "^capstan: error: SIGSEGV outside of plugins, rank 1\\. The functions that were called, the last first:\n"
      "(.*\n)*.*guilty_plugin_test.*\\+0x[0-9a-f]+.*\n");
  EXPECT_EXIT(
      {
        name_guilty_plugins();
        std::exit(3);
      },
      testing::ExitedWithCode(3), "^$");
}

TEST(GuiltyPluginDeathTest, IsNobodyWithoutTheProgramsWord) {
  EXPECT_EXIT(
      {
        const CallInProgress call(kUpdate);
        segfault();
      },
      testing::KilledBySignal(SIGSEGV), "^$");
}

TEST(GuiltyPluginDeathTest, KeepsTheExitCodeOfAnExitInACall) {
  EXPECT_EXIT(
      {
        name_guilty_plugins();
        const CallInProgress call(kUpdate);
        std::exit(5);
      },
      testing::ExitedWithCode(5), "^capstan: error: exit\\(5\\) was called in plugin acme .*, function update\\. Tell");
}

}  // namespace
}  // namespace capstan
