#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/registry/plugin_index.hpp"

namespace capstan {
namespace {

TEST(BundledPlugins, HaveManifestsThatTheCoreAccepts) {
  const auto index = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins", "the build"}});
  for (const RejectedPlugin& rejected : index.rejected()) ADD_FAILURE() << rejected.reason;
  EXPECT_TRUE(index.shadowed().empty());
}

TEST(BundledPlugins, ProvideTheTypesOfTheConfigurationLanguageInAnyLetterCase) {
  const auto index = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins", "the build"}});
  for (const char* type : {"adam", "ADAMW", "SGD", "Lamb", "Adagrad", "lion", "RMSprop", "NAdam", "RAdam", "Adamax",
                           "Adadelta", "ASGD", "Rprop", "onebitadam", "OneBitLamb", "ZeroOneAdam"})
    EXPECT_TRUE(index.find("optimizer", type)) << type;
  for (const char* type : {"lrrangetest", "OneCycle", "1Cycle", "warmuplr", "WarmupDecayLR", "WarmupCosineLR",
                           "CosineAnnealingLR", "StepLR"}) {
    EXPECT_TRUE(index.find("scheduler", type)) << type;
  }
}

}  // namespace
}  // namespace capstan
