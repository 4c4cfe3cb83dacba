#include "core/registry/plugin_template.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "core/registry/plugin_kind.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(PluginTemplate, NamesTheTypeAfterThePackageWithoutItsVendor) {
  EXPECT_EQ(type_of_package("acme-signum"), "Signum");
  EXPECT_EQ(type_of_package("acme-my-adam"), "MyAdam");
  EXPECT_EQ(type_of_package("signum"), "Signum");
  EXPECT_EQ(type_of_package("acme-8bit"), "Plugin8bit");
}

TEST(PluginTemplate, PutsTheNewNamesIntoEveryFileOfEveryKind) {
  for (const std::string& kind : plugin_kind_names(true)) {
    TemporaryFolder folder;
    const auto files = create_plugin_project({"acme-signum", kind, folder / "made"});

    for (const char* file :
         {"CMakeLists.txt", "README.md", "plugin.toml", "acme_signum.cpp", "acme_signum.hpp", "test/CMakeLists.txt",
          "test/acme_signum_test.cpp", ".github/workflows/ci.yml", ".gitignore"}) {
      EXPECT_THAT(files, Contains(file)) << kind;
    }
    for (const auto& file : files) {
      const std::string text = read_bytes(folder / "made" / file);
      for (const char* left : {"template-", "template_plugin", "TemplatePlugin"}) {
        EXPECT_THAT(text, Not(HasSubstr(left))) << kind << " " << file;
      }
    }
    EXPECT_THAT(read_bytes(folder / "made/plugin.toml"),
                ::testing::AllOf(HasSubstr("name = \"acme-signum\""), HasSubstr("vendor = \"acme\""),
                                 HasSubstr("type = \"Signum\""), HasSubstr("kind = \"" + kind + "\"")));
  }
}

TEST(PluginTemplate, OfAVariantTakesItsSourcesAndTheRestFromTheKind) {
  TemporaryFolder folder;
  const auto files = create_plugin_project({"acme-signum", "scheduler", folder / "made", "c"});

  const std::vector<std::filesystem::path> expected = {".github/workflows/ci.yml",
                                                       ".gitignore",
                                                       "CMakeLists.txt",
                                                       "README.md",
                                                       "acme_signum.c",
                                                       "acme_signum.h",
                                                       "plugin.toml",
                                                       "test/CMakeLists.txt",
                                                       "test/acme_signum_test.c"};
  EXPECT_EQ(files, expected);
  EXPECT_THAT(read_bytes(folder / "made/acme_signum.c"), HasSubstr(".type = CAPSTAN_LITERAL(\"Signum\")"));
}

TEST(PluginTemplate, NamesTheVariantsThatAKindHas) {
  EXPECT_THAT(template_variants("observer"), ::testing::ElementsAre("batch"));
  EXPECT_THAT(
      [] {
        create_plugin_project({"acme", "observer", "/nowhere", "bacth"});
      },
      ThrowsMessage<ConfigError>(StrEq("plugins new: kind 'observer' has no template 'bacth', only its plain one and: "
                                       "batch. Did you mean 'batch'?")));
  EXPECT_THAT(
      [] {
        create_plugin_project({"acme", "model", "/nowhere", "c"});
      },
      ThrowsMessage<ConfigError>(StrEq("plugins new: kind 'model' has no template 'c', only its plain one.")));
}

TEST(PluginTemplate, RefusesNamesThatNoPackageCanHave) {
  for (const char* name : {"", "Acme", "acme_signum", "-acme", "acme-", "a--b", "8bit", "acme signum", "../acme"}) {
    EXPECT_THAT(
        [&] {
          create_plugin_project({name, "optimizer", "/nowhere"});
        },
        ThrowsMessage<ConfigError>(StrEq("plugins new: '" + std::string(name) +
                                         "' cannot be the name of a package. Use small letters, digits and "
                                         "'-', beginning with a letter, such as acme-signum.")));
  }
}

TEST(PluginTemplate, NamesTheKindsThatItHas) {
  EXPECT_THAT(
      [] {
        create_plugin_project({"acme", "optimiser", "/nowhere"});
      },
      ThrowsMessage<ConfigError>(StrEq(
          "plugins new: there is no template of kind 'optimiser', only of optimizer, scheduler, "
          "monitor, model, observer, offload, compression, dataset, sampler, metric, pacing, attention and tuner. Did "
          "you mean "
          "'optimizer'?")));
}

TEST(PluginTemplate, NeverWritesIntoAFolderThatHoldsSomething) {
  TemporaryFolder folder;
  write_bytes(folder / "mine.txt", "keep me");

  EXPECT_THAT(
      [&] {
        create_plugin_project({"acme", "monitor", folder.path()});
      },
      ThrowsMessage<RuntimeFault>(StrEq(folder.path().string() + ": already exists. Choose another name or folder.")));
  EXPECT_EQ(read_bytes(folder / "mine.txt"), "keep me");
}

TEST(PluginTemplate, SaysWhatTheDiskRefuses) {
  TemporaryFolder folder;
  write_bytes(folder / "file", "");

  EXPECT_THAT(
      [&] {
        create_plugin_project({"acme", "monitor", folder / "file/below"});
      },
      ThrowsMessage<RuntimeFault>(HasSubstr((folder / "file").string())));
}

}  // namespace
}  // namespace capstan
