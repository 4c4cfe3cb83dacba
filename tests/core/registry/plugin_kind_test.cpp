#include "core/registry/plugin_kind.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "capstan/plugin.h"
#include "core/config/language/language.hpp"
#include "core/registry/manifest.hpp"
#include "sdk/conformance/case.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSource = CAPSTAN_TEST_SOURCE_DIR;

/// Everything that a row of the table promises is there.
class EveryKind : public ::testing::TestWithParam<PluginKind> {
 protected:
  std::string name() const { return std::string(GetParam().name); }
};

TEST_P(EveryKind, HasItsFunctionsInTheInterfaceAndAHeaderOfTheSdk) {
  EXPECT_THAT(read_bytes(kSource / "sdk/include/capstan/plugin.h"), HasSubstr("} capstan_" + name() + ";"));
  EXPECT_TRUE(std::filesystem::exists(kSource / "sdk/include/capstan/sdk" / (name() + ".hpp")));
}

TEST_P(EveryKind, HasAPageForAuthorsThatThePageOfAllKindsLists) {
  EXPECT_THAT(read_bytes(kSource / "docs" / GetParam().page), HasSubstr("sdk/" + name() + ".hpp"));
  EXPECT_THAT(read_bytes(kSource / "docs/reference/plugins/README.md"), HasSubstr("\n| " + name() + " | ["));
}

TEST_P(EveryKind, HasATemplateWhereItSaysSo) {
  const auto folder = kSource / "sdk/template" / name();
  ASSERT_EQ(std::filesystem::is_directory(folder), GetParam().has_template);
  if (GetParam().has_template) {
    EXPECT_THAT(read_bytes(folder / "plugin.toml"), HasSubstr("kind = \"" + name() + "\""));
  }
}

TEST_P(EveryKind, HasASuiteInTheConformanceKit) { EXPECT_TRUE(conformance::has_suite(GetParam().name)); }

TEST_P(EveryKind, IsNamedWhereItSaysInTheConfiguration) {
  if (GetParam().path.empty()) return;
  const std::string path(GetParam().path.substr(0, GetParam().path.find("[]")));
  EXPECT_NE(find_key(path), nullptr) << path;
}

TEST_P(EveryKind, IsAcceptedInManifests) {
  const std::string text =
      "schema = 1\nname = \"p\"\nversion = \"1.0\"\n[abi]\nplugin = \"1.0\"\n[abi.torch]\ntier = \"none\"\n"
      "[[components]]\nkind = \"" +
      name() + "\"\ntype = \"T\"\n";
  EXPECT_EQ(PluginManifest::parse(text, "p.so").components.at(0).kind, name());
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, ::testing::ValuesIn(plugin_kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PluginKinds, AreThoseThatTheBuildKnows) {
  std::string names;
  for (const std::string& name : plugin_kind_names()) names += (names.empty() ? "" : ",") + name;
  EXPECT_EQ(names, CAPSTAN_TEST_PLUGIN_KINDS);
}

TEST(PluginKinds, MissTheFirstFunctionThatATableDoesNotReachOrLeavesEmpty) {
  const PluginKind* model = find_plugin_kind("model");
  ASSERT_NE(model, nullptr);
  capstan_model table{};
  table.struct_size = sizeof table;
  EXPECT_EQ(model->missing_function(&table), "visit");
  table.visit = [](void*, const capstan_visitor*, capstan_error*) { return CAPSTAN_OK; };
  table.forward = [](void*, capstan_batch*, capstan_tensor*, capstan_error*) { return CAPSTAN_OK; };
  EXPECT_EQ(model->missing_function(&table), "training");
  table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
  EXPECT_EQ(model->missing_function(&table), "");
  table.struct_size = offsetof(capstan_model, training);  // as a plugin of an older interface says
  EXPECT_EQ(model->missing_function(&table), "training");
  EXPECT_EQ(find_plugin_kind("optimiser"), nullptr);
}

}  // namespace
}  // namespace capstan
