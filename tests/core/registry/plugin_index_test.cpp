#include "core/registry/plugin_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "core/errors.hpp"
#include "tests/core/registry/abi_version.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr std::string_view kType = "type = \"Plain\"";

class PluginIndexTest : public ::testing::Test {
 protected:
  PluginIndexTest() { ::unsetenv("CAPSTAN_PLUGIN_PATH"); }

  std::filesystem::path add(const std::string& file, std::string_view from = "", std::string_view to = "") {
    std::filesystem::create_directories((folder_ / file).parent_path());
    return patched_copy(test_plugin("test_plain"), folder_ / file, from, to);
  }
  PluginIndex scan() const { return PluginIndex::scan({{folder_.path(), "--plugin-path"}}); }
  /// Plugins of this test's folder only: what is installed is there too.
  std::vector<std::string> files_of(const PluginIndex& index) const {
    std::vector<std::string> files;
    for (const auto& plugin : index.plugins()) {
      const auto relative = plugin.file.lexically_relative(folder_.path()).string();
      if (!relative.starts_with("..")) files.push_back(relative);
    }
    return files;
  }

  TemporaryFolder folder_;
};

TEST_F(PluginIndexTest, FindsPluginsInAFolderAndOneLevelBelow) {
  add("libcapstan_b.so", kType, "type = \"Bbbbb\"");
  add("libcapstan_a.so", kType, "type = \"Aaaaa\"");
  add("monitors/libcapstan_c.so", kType, "type = \"Ccccc\"");
  add("monitors/deeper/libcapstan_d.so");
  add("notes.txt");
  add("libother.so");

  EXPECT_THAT(files_of(scan()), ElementsAre("libcapstan_a.so", "libcapstan_b.so", "monitors/libcapstan_c.so"));
}

TEST_F(PluginIndexTest, FindsTypesAndAliasesInAnyLetterCase) {
  add("libcapstan_plain.so");
  const PluginIndex index = scan();

  for (const char* type : {"Plain", "plain", "PLAIN", "plain_monitor", "Plain_Monitor"}) {
    ASSERT_TRUE(index.find("monitor", type)) << type;
    EXPECT_EQ(index.find("monitor", type).component->type, "Plain");
    EXPECT_EQ(index.find("monitor", type).plugin->manifest.name, "test-plain");
  }
  EXPECT_FALSE(index.find("optimizer", "Plain"));
  EXPECT_FALSE(index.find("monitor", "Plain", "cuda"));
  EXPECT_FALSE(index.find("monitor", "Plai"));
}

TEST_F(PluginIndexTest, TakesTheFirstAndTellsWhatItHides) {
  const auto first = add("a/libcapstan_x.so");
  const auto second = add("b/libcapstan_x.so");
  const PluginIndex index =
      PluginIndex::scan({{folder_ / "a", "--plugin-path"}, {folder_ / "b", "capstan.plugins.path"}});

  EXPECT_EQ(index.find("monitor", "Plain").plugin->file, first);
  ASSERT_THAT(index.shadowed(), SizeIs(1));
  EXPECT_EQ(index.shadowed()[0].first.plugin->file, second);
  EXPECT_EQ(index.shadowed()[0].second.plugin->file, first);
  EXPECT_THAT(index.warnings(), ElementsAre(second.string() + ": its monitor 'Plain' is hidden by " + first.string() +
                                            ", which comes first in the search path."));
}

TEST_F(PluginIndexTest, GivesAModelTypeToTheFirstThatTakesItAndNamesTheOther) {
  const std::filesystem::path decoder =
      CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/models/libcapstan_model_decoder.so";
  patched_copy(decoder, folder_ / "libcapstan_a.so", "type = \"decoder\"", "type = \"aaaaaaa\"");
  patched_copy(decoder, folder_ / "libcapstan_b.so", "type = \"decoder\"", "type = \"bbbbbbb\"");
  patched_copy(decoder, folder_ / "libcapstan_c.so", "type = \"decoder\"", "type = \"aaaaaaa\"");
  const PluginIndex index = PluginIndex::scan_only(folder_.path());
  EXPECT_EQ(index.find_model_type("llama").component->type, "aaaaaaa");
  EXPECT_FALSE(index.find_model_type("mixtral"));
  EXPECT_THAT(index.model_types(), Contains("qwen2"));
  // A plugin that another of its type hides takes nothing anyway.
  const std::string a = (folder_ / "libcapstan_a.so").string(), b = (folder_ / "libcapstan_b.so").string();
  EXPECT_THAT(index.warnings(),
              Contains(b + ": its model 'bbbbbbb' and the model 'aaaaaaa' of " + a +
                       " both take the model type 'llama'. Folders and files of that type go to 'aaaaaaa', which comes "
                       "first in the search path."));
  EXPECT_THAT(index.warnings(), Not(Contains(AllOf(HasSubstr("libcapstan_c.so"), HasSubstr("model type")))));
}

TEST_F(PluginIndexTest, WarnsOnceOfAFolderThatHidesMuch) {
  add("a/libcapstan_x.so");
  const auto hidden = add("b/libcapstan_x.so");
  add("b/libcapstan_y.so");
  const PluginIndex index = PluginIndex::scan({{folder_ / "a", "--plugin-path"}, {folder_ / "b", "--plugin-path"}});
  ASSERT_THAT(index.shadowed(), SizeIs(2));
  EXPECT_THAT(index.warnings(),
              ElementsAre(AllOf(StartsWith(hidden.string()), HasSubstr((folder_ / "a").string() + " hides 1 more; "))));
}

TEST_F(PluginIndexTest, SearchesTheEnvironmentsFoldersAfterTheGivenOnes) {
  add("env/libcapstan_x.so");
  const auto given = add("given/libcapstan_x.so");
  ::setenv("CAPSTAN_PLUGIN_PATH", ("::/nowhere-at-all:" + (folder_ / "env").string()).c_str(), 1);
  const PluginIndex index = PluginIndex::scan({{folder_ / "given", "--plugin-path"}});
  ::unsetenv("CAPSTAN_PLUGIN_PATH");

  ASSERT_GE(index.folders().size(), 4u);
  EXPECT_EQ(index.folders()[0].origin, "--plugin-path");
  EXPECT_EQ(index.folders()[0].plugins, 1);
  EXPECT_EQ(index.folders()[1].path, "/nowhere-at-all");
  EXPECT_EQ(index.folders()[1].problem, "does not exist");
  EXPECT_EQ(index.folders()[2].origin, "CAPSTAN_PLUGIN_PATH");
  EXPECT_EQ(index.folders()[3].origin, "installed");
  EXPECT_EQ(index.folders()[3].path, std::filesystem::path(CAPSTAN_TEST_BUILD_DIR) / "lib/capstan/plugins");
  EXPECT_EQ(index.find("monitor", "Plain").plugin->file, given);
}

TEST_F(PluginIndexTest, ReadsAFolderThatIsNamedTwiceOnce) {
  add("libcapstan_x.so");
  const PluginIndex index =
      PluginIndex::scan({{folder_.path(), "--plugin-path"}, {folder_.path() / ".", "capstan.plugins.path"}});

  EXPECT_THAT(files_of(index), SizeIs(1));
  EXPECT_THAT(index.shadowed(), IsEmpty());
}

TEST_F(PluginIndexTest, KeepsReferencesValidInCopiesAndAfterMoves) {
  add("libcapstan_plain.so");
  PluginIndex copy;
  ComponentRef ref;
  {
    PluginIndex index = scan();
    ref = index.find("monitor", "Plain");
    PluginIndex moved = std::move(index);
    copy = moved;
  }

  EXPECT_EQ(copy.find("monitor", "Plain").component, ref.component);
  EXPECT_EQ(ref.component->type, "Plain");
}

TEST_F(PluginIndexTest, ListsBrokenFilesWithTheirReason) {
  add("libcapstan_good.so");
  write_bytes(folder_ / "libcapstan_text.so", "not a library");
  const std::string version = "2" + abi_version().substr(1);  // of the same length, for the patch
  const auto newer = add("libcapstan_newer.so", "plugin = \"" + abi_version() + "\"", "plugin = \"" + version + "\"");
  const PluginIndex index = scan();

  EXPECT_THAT(files_of(index), ElementsAre("libcapstan_good.so"));
  ASSERT_THAT(index.rejected(), SizeIs(2));
  EXPECT_EQ(index.rejected()[0].reason,
            newer.string() + ": built for Capstan plugin ABI " + version + ", this engine speaks " + abi_version() +
                ". Rebuild it with the SDK of this release, or install a Capstan that speaks 2.x.");
  EXPECT_EQ(index.rejected()[1].reason,
            (folder_ / "libcapstan_text.so").string() + ": not a shared library (no ELF header).");
}

TEST_F(PluginIndexTest, RefusesFilesThatEverybodyMayWrite) {
  const auto file = add("libcapstan_open.so");
  ::chmod(file.c_str(), 0666);
  const PluginIndex index = scan();

  EXPECT_THAT(files_of(index), IsEmpty());
  ASSERT_THAT(index.rejected(), SizeIs(1));
  EXPECT_EQ(index.rejected()[0].reason, file.string() +
                                            ": everybody may write to this file, so nothing is loaded from it. Take "
                                            "the permission away: chmod o-w '" +
                                            file.string() + "'.");
}

TEST_F(PluginIndexTest, RefusesFoldersThatEverybodyMayWrite) {
  add("inner/libcapstan_x.so");
  ::chmod((folder_ / "inner").c_str(), 0777);
  EXPECT_THAT(files_of(scan()), IsEmpty());
  EXPECT_THAT(scan().rejected(), SizeIs(1));

  ::chmod((folder_ / "inner").c_str(), 0700);
  ::chmod(folder_.path().c_str(), 01777);  // a sticky bit does not keep strangers from adding files
  const PluginIndex index = scan();
  EXPECT_THAT(files_of(index), IsEmpty());
  EXPECT_EQ(index.folders()[0].problem, "refused");
  ASSERT_THAT(index.rejected(), SizeIs(1));
  EXPECT_THAT(index.rejected()[0].reason,
              StartsWith(folder_.path().string() + ": everybody may write to this folder, so nothing is loaded"));
  ::chmod(folder_.path().c_str(), 0700);
}

TEST_F(PluginIndexTest, RefusesWhatBelongsToAStranger) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const auto file = add("libcapstan_x.so");
  ASSERT_EQ(::chown(file.c_str(), 54321, 0), 0);
  const PluginIndex index = scan();

  EXPECT_THAT(files_of(index), IsEmpty());
  ASSERT_THAT(index.rejected(), SizeIs(1));
  EXPECT_EQ(index.rejected()[0].reason,
            file.string() +
                ": this file belongs to user 54321, so nothing is loaded from it. It must belong to you (root) or to "
                "root.");
}

/// A folder of this test's that everybody may write to.
class OpenFolderTest : public PluginIndexTest {
 protected:
  OpenFolderTest() {
    for (const char* name : {"open", "good"}) std::filesystem::create_directory(folder_ / name);
    ::chmod((folder_ / "open").c_str(), 0777);
  }
  /// Why a folder, or the only file in it, is refused.
  std::string refusal(const std::filesystem::path& folder) const {
    const PluginIndex index = PluginIndex::scan({{folder, "--plugin-path"}});
    EXPECT_THAT(files_of(index), IsEmpty());
    return index.rejected().size() == 1 ? index.rejected()[0].reason : "not refused once";
  }
  std::string open_to_all(const std::filesystem::path& path) const {
    const std::string open = "'" + (folder_ / "open").string() + "'";
    return path.string() + ": the path leads through " + open +
           ", to which everybody may write, so nothing is loaded from it. Take the permission away: chmod o-w " + open +
           ".";
  }
};

TEST_F(OpenFolderTest, ALinkThatLeadsThereIsRefused) {
  const auto file = add("open/libcapstan_x.so");
  const auto link = folder_ / "good/libcapstan_x.so";
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(refusal(folder_ / "good"), open_to_all(link));
}

TEST_F(OpenFolderTest, ALinkThatLiesThereIsRefused) {
  add("good/libcapstan_x.so");
  std::filesystem::create_symlink("../good", folder_ / "open/link");
  EXPECT_EQ(refusal(folder_ / "open/link"), open_to_all(folder_ / "open/link"));
}

TEST_F(OpenFolderTest, AFolderBelowItIsRefused) {
  add("open/own/inner/libcapstan_x.so");
  EXPECT_EQ(refusal(folder_ / "open/own/inner"), open_to_all(folder_ / "open/own/inner"));
}

TEST_F(OpenFolderTest, AnOwnFolderBelowItIsSafeWhereTheStickyBitKeepsStrangersFromReplacingIt) {
  ::chmod((folder_ / "open").c_str(), 01777);
  add("open/own/libcapstan_x.so");
  EXPECT_THAT(files_of(PluginIndex::scan({{folder_ / "open/own", "--plugin-path"}})), SizeIs(1));
}

TEST_F(OpenFolderTest, LinksInACircleAreNoPlugin) {
  std::filesystem::create_symlink("libcapstan_x.so", folder_ / "good/libcapstan_x.so");
  EXPECT_EQ(refusal(folder_ / "good"),
            (folder_ / "good/libcapstan_x.so").string() + ": cannot be read: Too many levels of symbolic links.");
}

TEST_F(PluginIndexTest, RefusesWhatLiesInAStrangersFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  add("theirs/own/libcapstan_x.so");
  ASSERT_EQ(::chown((folder_ / "theirs").c_str(), 54321, 0), 0);
  const PluginIndex index = PluginIndex::scan({{folder_ / "theirs/own", "--plugin-path"}});

  EXPECT_THAT(files_of(index), IsEmpty());
  ASSERT_THAT(index.rejected(), SizeIs(1));
  EXPECT_EQ(index.rejected()[0].reason, (folder_ / "theirs/own").string() + ": the path leads through '" +
                                            (folder_ / "theirs").string() +
                                            "', which belongs to user 54321, so nothing is loaded from it. It must "
                                            "belong to you (root) or to root.");
}

TEST_F(PluginIndexTest, WarnsOnceOfAFolderAboveThatAGroupMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  add("ours/own/libcapstan_x.so");
  add("ours/own/libcapstan_y.so", kType, "type = \"Other\"");
  ASSERT_EQ(::chown((folder_ / "ours").c_str(), 0, 54321), 0);
  ::chmod((folder_ / "ours").c_str(), 0775);

  EXPECT_THAT(PluginIndex::scan({{folder_ / "ours/own", "--plugin-path"}}).warnings(),
              ElementsAre((folder_ / "ours").string() +
                          ": the group of this folder may write to it and so decide what code runs here. If that is "
                          "not meant: chmod g-w '" +
                          (folder_ / "ours").string() + "'."));
}

TEST_F(PluginIndexTest, WarnsOfWhatAGroupMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const auto file = add("libcapstan_x.so");
  ASSERT_EQ(::chown(file.c_str(), 0, 54321), 0);
  ::chmod(file.c_str(), 0664);
  const PluginIndex index = scan();

  EXPECT_THAT(files_of(index), SizeIs(1));
  EXPECT_THAT(index.warnings(), ElementsAre(file.string() +
                                            ": the group of this file may write to it and so decide what code runs "
                                            "here. If that is not meant: chmod g-w '" +
                                            file.string() + "'."));
}

TEST_F(PluginIndexTest, SaysWhatIsMissingWhatIsNearAndWhereItLooked) {
  add("libcapstan_plain.so");
  const std::string text = scan().missing_text("csv.type", "monitor", "Plaim");

  EXPECT_THAT(text, StartsWith("csv.type: no plugin provides a monitor 'Plaim'. Did you mean 'Plain' (test-plain "
                               "1.2.0)? Available: "));
  EXPECT_THAT(text, HasSubstr("\n  looked in: " + folder_.path().string() + " (1 plugin), " + CAPSTAN_TEST_BUILD_DIR +
                              "/lib/capstan/plugins ("));
}

TEST_F(PluginIndexTest, SaysThatThereIsNone) {
  const std::string text = PluginIndex().missing_text("offload.type", "offload", "Tape");

  EXPECT_EQ(text, "offload.type: no plugin provides an offload 'Tape'. Available: none.\n  looked in: no folder");
}

TEST_F(PluginIndexTest, SaysThatANameBelongsToAnotherKind) {
  add("libcapstan_plain.so");

  EXPECT_THAT(
      scan().missing_text("optimizer.type", "optimizer", "Plain"),
      StartsWith("optimizer.type: no plugin provides an optimizer 'Plain' (there is a monitor of that name). "));
}

TEST_F(PluginIndexTest, SaysThatANameIsForAnotherDevice) {
  add("libcapstan_plain.so", "summary = \"A monitor in plain C.\"", "device = \"cuda\"                  ");

  EXPECT_THAT(scan().missing_text("x", "monitor", "Plain"),
              StartsWith("x: no plugin provides a monitor 'Plain' for this device, only for cuda. Available: "));
}

TEST_F(PluginIndexTest, TellsWhyFilesWereRefusedWhereTheirComponentIsNeeded) {
  const auto file = folder_ / "libcapstan_text.so";
  write_bytes(file, "not a library");

  EXPECT_THAT(scan().missing_text("optimizer.type", "optimizer", "Lion"),
              HasSubstr("\n  refused: " + file.string() + ": not a shared library (no ELF header)."));
}

TEST_F(PluginIndexTest, ReadsOnePluginThatIsNotInstalled) {
  const auto file = add("anything.so");

  EXPECT_EQ(read_plugin(file).manifest.name, "test-plain");
  ::chmod(file.c_str(), 0666);
  EXPECT_THROW(read_plugin(file), PluginError);
}

}  // namespace
}  // namespace capstan
