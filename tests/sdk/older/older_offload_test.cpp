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

TEST(OlderOffload, LoadsAndHasNoFunctionThatCameLater) {
  const IndexedPlugin plugin = read_plugin(kPlugin);
  EXPECT_EQ(plugin.manifest.abi_major, 1u);
  EXPECT_EQ(plugin.manifest.abi_minor, 2u);

  const capstan_host host = make_host();
  Registry registry(PluginIndex::of({plugin}));
  const Component component = registry.create("here", "offload", "older_memory", Json::object(), &host);
  const auto* table = component.vtable<capstan_offload>();

  EXPECT_TRUE(CAPSTAN_HAS(table, wait));
  EXPECT_FALSE(CAPSTAN_HAS(table, facts));
  EXPECT_FALSE(CAPSTAN_HAS(table, lend));
  EXPECT_FALSE(CAPSTAN_HAS(table, start));
  EXPECT_FALSE(CAPSTAN_HAS(table, poll));
  EXPECT_FALSE(CAPSTAN_HAS(table, fault));
  EXPECT_FALSE(CAPSTAN_HAS(table, release_buffer));
}

TEST(OlderOffload, PassesTheKitAsBeforeAndSkipsWhatRangesMustDo) {
  const std::set<std::string> before = {"sizes", "in_flight", "order", "fork", "calls_leak", "full_disk", "short_read"};
  const std::string of_type = "offload/older_memory/";
  const auto results = conformance::check(kPlugin);

  std::size_t whole = 0, skipped = 0;
  for (const conformance::Result& result : results) {
    if (!result.name.starts_with(of_type) || result.name.find("create_") != std::string::npos) {
      EXPECT_NE(result.outcome, conformance::Outcome::kFailed) << result.name << ": " << result.text;
    } else if (before.contains(result.name.substr(of_type.size()))) {
      EXPECT_EQ(result.outcome, conformance::Outcome::kPassed) << result.name << ": " << result.text;
      ++whole;
    } else {
      EXPECT_EQ(result.outcome, conformance::Outcome::kSkipped) << result.name << ": " << result.text;
      EXPECT_EQ(result.text, result.name == of_type + "stats"
                                 ? "has no stats."
                                 : "has no start and poll: it moves whole buffers alone, as before ABI 1.6.");
      ++skipped;
    }
  }
  EXPECT_EQ(whole, before.size());
  EXPECT_EQ(skipped, 15u);
}

}  // namespace
}  // namespace capstan
