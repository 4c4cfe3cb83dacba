#include "core/registry/config_mistakes.hpp"

#include <gmock/gmock.h>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan {
namespace {

using ::testing::ThrowsMessage;

TEST(ConfigMistakes, AreTheTextBehindTheMarkWhateverStandsBeforeIt) {
  const std::string text = sdk::ConfigMistake("a.b", "4 is too many.").what();
  EXPECT_TRUE(has_config_mistake("observer 'x', layer 'y': " + text));
  EXPECT_FALSE(has_config_mistake("observer 'x': a.b: 4 is too many."));
  EXPECT_EQ(config_mistakes_of("observer 'x', layer 'y': " + text), "a.b: 4 is too many.");
}

TEST(ConfigMistakes, OfOneComponentAreShownTogether) {
  sdk::ConfigMistakes found;
  EXPECT_NO_THROW(found.throw_if_any());
  found.add("a", "is missing.");
  found.gather([] { throw sdk::ConfigMistake("b", "is 3."); });
  EXPECT_THROW(found.gather([] { throw sdk::Error("the disk is full."); }), sdk::Error);
  std::string text;
  try {
    found.throw_if_any();
  } catch (const sdk::ConfigMistake& mistake) {
    text = mistake.what();
  }
  EXPECT_EQ(config_mistakes_of("compression 'x': " + text), "a: is missing.\nb: is 3.");
}

TEST(ConfigMistakes, OfSeveralComponentsAreShownTogether) {
  ConfigMistakes found;
  EXPECT_NO_THROW(found.throw_if_any());
  found.gather([] { throw PluginError("observer 'x': [configuration] a: is 3."); });
  found.gather([] { throw ConfigError("b: is 4."); });
  found.gather([] {});
  EXPECT_THAT([&] { found.throw_if_any(); }, ThrowsMessage<ConfigError>("a: is 3.\nb: is 4."));
  EXPECT_THROW(found.gather([] { throw PluginError("observer 'y': out of memory."); }), PluginError);
}

TEST(ConfigMistakes, BecomeConfigErrorsAndOtherFailuresStayWhatTheyAre) {
  const auto thrown = [](const auto& error) { return [error] { with_config_mistakes([&] { throw error; }); }; };
  EXPECT_THAT(thrown(PluginError("observer 'x': [configuration] a: is 3.")), ThrowsMessage<ConfigError>("a: is 3."));
  EXPECT_THAT(thrown(RuntimeFault("rank 1: sampler 'x': [configuration] a: is 3.")),
              ThrowsMessage<ConfigError>("a: is 3."));
  EXPECT_THAT(thrown(PluginError("observer 'x': out.")), ThrowsMessage<PluginError>("observer 'x': out."));
  EXPECT_THAT(thrown(RuntimeFault("no disk.")), ThrowsMessage<RuntimeFault>("no disk."));
  EXPECT_EQ(with_config_mistakes([] { return 7; }), 7);
}

}  // namespace
}  // namespace capstan
