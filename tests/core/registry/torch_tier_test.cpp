#include "core/registry/torch_tier.hpp"

#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include "core/registry/host.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

class TorchTier : public ::testing::Test {
 protected:
  /// Creates the component of a plugin with its manifest patched.
  void create(const std::string& plugin, std::string_view from = "", std::string_view to = "") {
    const auto file = patched_copy(test_plugin(plugin), folder_ / ("libcapstan_" + plugin + ".so"), from, to);
    Json params;
    params["every"] = 1;
    Registry(PluginIndex::scan({{folder_.path(), "--plugin-path"}})).create("a", "monitor", "Plain", params, &host_);
    std::filesystem::remove(file);
  }

  TemporaryFolder folder_;
  capstan_host host_ = make_host();
  // References LibTorch, so that the process runs it.
  std::string torch_config_ = at::show_config();
};

TEST_F(TorchTier, KnowsTheLibTorchOfThisProcess) {
  EXPECT_EQ(running_torch().version, "2.11.0");
  EXPECT_EQ(running_torch().build_id, CAPSTAN_TEST_TORCH_BUILD_ID);
}

TEST_F(TorchTier, LoadsStableAndPinnedPluginsBesideTheirLibTorch) {
  EXPECT_NO_THROW(create("test_stable"));
  EXPECT_NO_THROW(create("test_pinned"));
}

TEST_F(TorchTier, RefusesAStablePluginThatNeedsANewerLibTorch) {
  EXPECT_THAT([&] { create("test_stable", "min = \"2.11\"", "min = \"2.13\""); },
              ThrowsMessage<PluginError>(StrEq((folder_ / "libcapstan_test_stable.so").string() +
                                               ": needs LibTorch 2.13 or newer, this process runs 2.11.0.")));
}

TEST_F(TorchTier, LoadsAStablePluginThatIsContentWithAnOlderLibTorch) {
  EXPECT_NO_THROW(create("test_stable", "min = \"2.11\"", "min = \"2.09\""));
}

TEST_F(TorchTier, RefusesAPluginPinnedToAnotherVersion) {
  EXPECT_THAT([&] { create("test_pinned", "version = \"2.11.0\"", "version = \"2.13.0\""); },
              ThrowsMessage<PluginError>(StrEq(
                  (folder_ / "libcapstan_test_pinned.so").string() + ": pinned to LibTorch 2.13.0 (build " +
                  running_torch().build_id.substr(0, 8) + "), this process runs 2.11.0 (build " +
                  running_torch().build_id.substr(0, 8) +
                  "). Loading it could corrupt tensors silently, so it was not loaded. Rebuild it here, or ask its "
                  "vendor for a 'stable' build.")));
}

TEST_F(TorchTier, RefusesAPluginPinnedToAnotherBuildOfTheSameVersion) {
  const std::string other = std::string(8, '0') + running_torch().build_id.substr(8);
  EXPECT_THAT([&] { create("test_pinned", running_torch().build_id, other); },
              ThrowsMessage<PluginError>(::testing::HasSubstr(": pinned to LibTorch 2.11.0 (build 00000000), this ")));
}

TEST(TorchMismatch, ComparesVersionsNumberByNumber) {
  PluginManifest manifest;
  manifest.tier = PluginManifest::Tier::kStable;
  const auto fits = [&](const std::string& min, const std::string& running) {
    manifest.torch_min = min;
    return torch_mismatch("x", manifest, {running, ""}).empty();
  };

  EXPECT_TRUE(fits("2.9", "2.11.0"));
  EXPECT_TRUE(fits("2.11", "2.11.0"));
  EXPECT_TRUE(fits("2.11.0", "2.11"));
  EXPECT_FALSE(fits("2.11.1", "2.11.0"));
  EXPECT_FALSE(fits("3.0", "2.99.9"));
}

TEST(TorchMismatch, DoesNotConcernPluginsWithoutLibTorch) {
  PluginManifest manifest;
  manifest.tier = PluginManifest::Tier::kNone;

  EXPECT_EQ(torch_mismatch("x", manifest, {}), "");
}

}  // namespace
}  // namespace capstan
