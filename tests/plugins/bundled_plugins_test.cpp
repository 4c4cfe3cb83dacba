#include "tests/plugins/bundled_plugins.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

namespace capstan::testing {
namespace {

using ::testing::UnorderedElementsAre;

std::string in_case(std::string text, int (*letter)(int)) {
  std::transform(text.begin(), text.end(), text.begin(), [&](unsigned char c) { return letter(c); });
  return text;
}

TEST(BundledPlugins, HaveManifestsThatTheCoreAccepts) {
  const auto index = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins", "the build"}});
  for (const RejectedPlugin& rejected : index.rejected()) ADD_FAILURE() << rejected.reason;
  EXPECT_TRUE(index.shadowed().empty());
  EXPECT_FALSE(bundled_plugins().empty());
  for (const IndexedPlugin& plugin : bundled_plugins()) {
    EXPECT_TRUE(std::any_of(index.plugins().begin(), index.plugins().end(), [&](const IndexedPlugin& found) {
      return std::filesystem::equivalent(found.file, plugin.file);
    })) << plugin.file;
  }
}

TEST(BundledPlugins, AreFoundByTypesAndAliasesInAnyLetterCase) {
  const auto index = PluginIndex::of(bundled_plugins());
  for (const IndexedPlugin& plugin : index.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      std::vector<std::string> names = component.aliases;
      names.push_back(component.type);
      for (const std::string& name : names) {
        for (const std::string& written : {name, in_case(name, std::tolower), in_case(name, std::toupper)}) {
          const ComponentRef found = index.find(component.kind, written, component.device);
          EXPECT_EQ(found.component, &component) << component.kind << " '" << written << "'";
        }
      }
    }
  }
}

TEST(BundledPlugins, ProvideTheTypesOfDeepSpeedsConfigurations) {
  const auto index = PluginIndex::of(bundled_plugins());
  for (const char* type :
       {"Adam", "AdamW", "Lamb", "Lion", "SGD", "Adagrad", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    EXPECT_TRUE(index.find("optimizer", type)) << type;
  }
  for (const char* type : {"LRRangeTest", "OneCycle", "1Cycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    EXPECT_TRUE(index.find("scheduler", type)) << type;
  }
  for (const char* type : {"nvme", "cpu"}) EXPECT_TRUE(index.find("offload", type)) << type;
  EXPECT_TRUE(index.find("compression", "weight_quantization"));
}

TEST(BundledPlugins, DeclareEveryOptimizerElementwiseThatTakesNoNormsOrWholeParametersAndSendsNoCodes) {
  std::vector<std::string> others;
  for (const IndexedPlugin& plugin : bundled_plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.kind == "optimizer" && !component.has_trait("elementwise")) others.push_back(component.type);
    }
  }
  EXPECT_THAT(others, UnorderedElementsAre("Adafactor", "Lamb", "Muon", "OneBitAdam", "OneBitLamb", "SparseAdam",
                                           "ZeroOneAdam"));
}

}  // namespace
}  // namespace capstan::testing
