#include "core/elastic/launcher/identity.hpp"

#include <gmock/gmock.h>

#include <stdexcept>

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string launch(const std::string& version, const std::string& build, const std::string& words,
                   const std::string& configuration) {
  return version + "\nprogram " + build + "\nfolder /home" + words + "\nconfiguration " + configuration;
}

std::string difference(const std::string& launched) {
  const std::string one = launch("Capstan 1\nLibTorch 2", "1234", "\nword train\nword x.json", "{\"lr\": 1}");
  return differing_kinds(launch_hashes(one, "key"), launch_hashes(launched, "key"));
}

TEST(ElasticIdentity, NamesTheKindOfWhatDiffers) {
  const std::string words = "\nword train\nword x.json", configuration = "{\"lr\": 1}",
                    version = "Capstan 1\nLibTorch 2";
  EXPECT_EQ(difference(launch(version, "1234", words, configuration)), "");
  EXPECT_EQ(difference(launch("Capstan 1\nLibTorch 3", "1234", words, configuration)),
            "the version of Capstan or LibTorch differs");
  EXPECT_EQ(difference(launch(version, "1235", words, configuration)), "the build of Capstan differs");
  EXPECT_EQ(difference(launch(version, "1234", "\nword x.json\nword train", configuration)),
            "the command line differs");
  EXPECT_EQ(difference(launch(version, "1234", words, "{\"lr\": 2}")), "the configuration differs");
  EXPECT_EQ(difference(launch(version, "1235", "\nword train", "{\"lr\": 2}")),
            "the build of Capstan, the command line and the configuration differ");
}

TEST(ElasticIdentity, LeavesTheFolderToEachHost) {
  EXPECT_EQ(differing_kinds(launch_hashes("program 1\nfolder /home/a\nword train", "key"),
                            launch_hashes("program 1\nfolder /home/b\nword train", "key")),
            "");
}

TEST(ElasticIdentity, TellsNothingOfTheTextToWhoHasNotTheSecret) {
  const std::string text =
      launch("Capstan 1", "1234", "\nword --set\nword wandb.team=SECRET", "{\"api_key\": \"KEY\"}");
  const std::string told = launch_hashes(text, "key").dump();
  for (const char* part : {"SECRET", "wandb", "KEY", "1234", "/home"}) EXPECT_THAT(told, Not(HasSubstr(part)));
  // Nobody can try texts until one fits.
  EXPECT_NE(launch_hashes(text, "key").dump(), launch_hashes(text, "").dump());
}

TEST(ElasticIdentity, IsNotFoundInSomethingElse) {
  const Json ours = launch_hashes("program 1", "key");
  EXPECT_THROW(differing_kinds(ours, Json::object()), std::exception);
  EXPECT_THROW(differing_kinds(ours, Json("text")), std::exception);
}

}  // namespace
}  // namespace capstan
