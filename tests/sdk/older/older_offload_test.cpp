#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/registry/registry.hpp"
#include "sdk/conformance/conformance.hpp"

namespace capstan {
namespace {

const std::filesystem::path kPlugin = CAPSTAN_TEST_BUILD_DIR "/tests/sdk_plugins/libcapstan_offload_older.so";

TEST(OlderOffload, HasNoFunctionBeyondItsTable) {
  const capstan_host host = make_host();
  Registry registry(PluginIndex::of({read_plugin(kPlugin)}));
  const Component component = registry.create("here", "offload", "older_memory", Json::object(), &host);
  const auto* table = component.vtable<capstan_offload>();

  EXPECT_TRUE(CAPSTAN_HAS(table, start));
  EXPECT_TRUE(CAPSTAN_HAS(table, poll));
  EXPECT_FALSE(CAPSTAN_HAS(table, facts));
  EXPECT_FALSE(CAPSTAN_HAS(table, lend));
  EXPECT_FALSE(CAPSTAN_HAS(table, fault));
  EXPECT_FALSE(CAPSTAN_HAS(table, release_buffer));
}

TEST(OlderOffload, PassesTheKitWhichSkipsWhatItLacks) {
  std::size_t passed = 0;
  std::set<std::string> skipped;
  for (const conformance::Result& result : conformance::check(kPlugin)) {
    EXPECT_NE(result.outcome, conformance::Outcome::kFailed) << result.name << ": " << result.text;
    passed += result.outcome == conformance::Outcome::kPassed;
    if (result.outcome == conformance::Outcome::kSkipped) skipped.insert(result.name);
  }
  EXPECT_GT(passed, 20u);
  for (const char* lacks : {"facts", "lend", "release", "stats"}) {
    EXPECT_TRUE(skipped.contains(std::string("offload/older_memory/") + lacks)) << lacks;
  }
}

}  // namespace
}  // namespace capstan
