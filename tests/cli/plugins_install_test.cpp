#include <gmock/gmock.h>
#include <sys/stat.h>

#include "core/registry/file_hash.hpp"
#include "tests/cli/programs.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// Commands of a user whose folders have blanks and letters beyond ASCII in their names.
class PluginsInstall : public ::testing::Test {
 protected:
  PluginsInstall() { fs::create_directories(folder_ / "my plügins"); }

  ProcessResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), "plugins");
    return run_capstan(folder_, words, {.environment = {"XDG_DATA_HOME=" + data().string()}});
  }
  ProcessResult install(const fs::path& source, bool force = false) const {
    return run(force ? std::vector<std::string>{"install", source.string(), "--force"}
                     : std::vector<std::string>{"install", source.string()});
  }
  /// A plugin test-plain 1.2.0 with a monitor 'Plain', under a name of its own and as another package.
  fs::path plugin(const std::string& name = "libcapstan_plain.so", std::string_view package = "test-plain") const {
    return patched_copy(test_plugin("test_plain"), folder_ / "my plügins" / name, "test-plain", package);
  }
  fs::path data() const { return folder_ / "datä of mine"; }
  fs::path place(const std::string& name = "libcapstan_plain.so") const { return data() / "capstan/plugins" / name; }
  std::vector<fs::path> installed() const {
    std::vector<fs::path> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(data() / "capstan/plugins", none)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(PluginsInstall, PutsAPluginWhereItIsFoundAndPinsItsBytes) {
  const fs::path source = plugin();
  const ProcessResult result = install(source), list = run({"list"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string digest = sha256_of_file(source);
  EXPECT_THAT(result.out, StartsWith("installed test-plain 1.2.0\n"));
  EXPECT_THAT(result.out, HasSubstr(place().string()));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("  tier +none \\(no LibTorch\\)\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("  loads +libc\\.so\\.6\n"));
  EXPECT_THAT(result.out, HasSubstr("\nmonitor Plain"));
  EXPECT_THAT(result.out, HasSubstr("  SHA-256 " + digest + ", pinned in " + place().string() +
                                    ".sha256: no other bytes are loaded\n"));
  EXPECT_THAT(result.out, EndsWith("It is code that runs in Capstan's process with all your rights. 'capstan plugins "
                                   "remove test-plain' takes it away.\n"));
  EXPECT_EQ(read_bytes(place()), read_bytes(source));
  EXPECT_EQ(read_bytes(place().string() + ".sha256"), digest + "  libcapstan_plain.so\n");
  EXPECT_THAT(list.out, HasSubstr((data() / "capstan/plugins").string() + " (user): 1 plugin\n"));
}

TEST_F(PluginsInstall, TakesAFolderOfPluginsAndAnotherFolderToPutThemIn) {
  const fs::path below = folder_ / "build/monitors";
  fs::create_directories(below);
  fs::copy_file(plugin(), below / "libcapstan_plain.so");
  const ProcessResult result = run({"install", (folder_ / "build").string(), "--to", (folder_ / "shared").string()});
  const ProcessResult removed = run({"remove", "test-plain", "--from", (folder_ / "shared").string()});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, EndsWith("The folder is searched with --plugin-path " + (folder_ / "shared").string() +
                                   ", and always once it is in CAPSTAN_PLUGIN_PATH.\n"));
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_THAT(installed(), IsEmpty());
  fs::remove_all(below);
  const ProcessResult none = install(folder_ / "build");
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_EQ(none.err, "capstan: error: " + (folder_ / "build").string() +
                          ": holds no plugin: there is no file libcapstan_*.so in it, nor one folder below.\n");
}

TEST_F(PluginsInstall, ReplacesOnlyWhenTold) {
  install(plugin());
  const fs::path newer = plugin("libcapstan_plain.so", "test-ploin");
  const ProcessResult refused = install(newer), forced = install(newer, true);

  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err,
            "capstan: error: " + place().string() + " (test-plain 1.2.0): exists already. --force replaces it.\n");
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(read_bytes(place()), read_bytes(newer));
  EXPECT_THAT(read_bytes(place().string() + ".sha256"), StartsWith(sha256_of_file(newer)));
}

TEST_F(PluginsInstall, RefusesATypeThatIsInstalledAlready) {
  install(plugin());
  const fs::path other = plugin("libcapstan_other.so", "test-other");
  const ProcessResult refused = install(other), forced = install(other, true);

  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "capstan: error: " + other.string() + ": its monitor 'Plain' is provided by " +
                             place().string() +
                             " (test-plain 1.2.0) already. Remove that first: capstan plugins remove test-plain. Or "
                             "keep both with --force: the first by file name counts.\n");
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr("  monitor Plain hides that of " + place().string() + "\n"));
}

TEST_F(PluginsInstall, RefusesAFolderInWhichTwoPluginsHaveAType) {
  const fs::path second = plugin("libcapstan_second.so", "test-other"), first = plugin("libcapstan_first.so");
  const ProcessResult refused = install(folder_ / "my plügins");

  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "capstan: error: " + first.string() + ": its monitor 'Plain' is provided by " +
                             second.string() +
                             " (test-other 1.2.0) as well. Install one of them alone, or both with --force: the first "
                             "by file name counts.\n");
  EXPECT_THAT(installed(), IsEmpty());
}

TEST_F(PluginsInstall, SaysWhichBundledTypeItHides) {
  const std::string bundled = "/lib/capstan/plugins/monitors/libcapstan_monitor_csv.so";
  const ProcessResult result = install(CAPSTAN_TEST_BUILD_DIR + bundled);

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("  monitor csv_monitor hides that of /.*" + bundled + "\n"));
}

TEST_F(PluginsInstall, RefusesWhatIsNoPlugin) {
  write_bytes(folder_ / "libcapstan_text.so", "text");
  const ProcessResult text = install(folder_ / "libcapstan_text.so"), missing = install(folder_ / "libcapstan_no.so");
  const ProcessResult named = install(plugin("plain.so"));

  EXPECT_EQ(text.exit_code, 4);
  EXPECT_EQ(text.err, "capstan: error: " + (folder_ / "libcapstan_text.so").string() +
                          ": not a shared library (no ELF header).\n");
  EXPECT_EQ(missing.err, "capstan: error: " + (folder_ / "libcapstan_no.so").string() +
                             ": cannot be read: No such file or directory.\n");
  EXPECT_EQ(named.exit_code, 4);
  EXPECT_EQ(named.err, "capstan: error: " + (folder_ / "my plügins/plain.so").string() +
                           ": a plugin's file is found by a name such as libcapstan_test-plain.so. Rename it.\n");
  EXPECT_THAT(installed(), IsEmpty());
}

TEST_F(PluginsInstall, RefusesWhatEverybodyMayWriteTo) {
  const fs::path file = plugin();
  fs::create_directories(folder_ / "own");
  fs::create_symlink(file, folder_ / "own/libcapstan_plain.so");
  ::chmod((folder_ / "my plügins").c_str(), 0777);
  const ProcessResult direct = install(file), linked = install(folder_ / "own/libcapstan_plain.so");

  for (const ProcessResult& result : {direct, linked}) {
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_THAT(result.err, HasSubstr(": the path leads through '" + (folder_ / "my plügins").string() +
                                      "', to which everybody may write, so nothing is loaded from it."));
  }
  EXPECT_THAT(installed(), IsEmpty());
}

TEST_F(PluginsInstall, LeavesNoHalfOfAPluginWhenItIsInterrupted) {
  const fs::path source = plugin();
  // The kernel ends the copy after 1024 bytes.
  const std::string command = "ulimit -f 1; exec '" + kCapstan + "' plugins install '" + source.string() + "'";
  const ProcessResult interrupted =
      run_process({"bash", "-c", command}, {.environment = {"XDG_DATA_HOME=" + data().string()}});

  EXPECT_NE(interrupted.exit_code, 0);
  EXPECT_FALSE(fs::exists(place()));
  EXPECT_THAT(run({"list"}).out, HasSubstr(" (user): 0 plugins\n"));
  EXPECT_EQ(install(source).exit_code, 0);
  EXPECT_EQ(read_bytes(place()), read_bytes(source));
}

TEST_F(PluginsInstall, SaysWhatTheDiskRefuses) {
  write_bytes(folder_ / "file", "");
  const ProcessResult result = run({"install", plugin().string(), "--to", (folder_ / "file/below").string()});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "capstan: error: " + (folder_ / "file/below").string() + ": Not a directory.\n");
}

TEST_F(PluginsInstall, RemovesAPluginByThePackagesName) {
  install(plugin());
  const ProcessResult misspelt = run({"remove", "test-plane"}), removed = run({"remove", "test-plain"});
  const ProcessResult again = run({"remove", "test-plain"});

  EXPECT_EQ(misspelt.exit_code, 4);
  EXPECT_EQ(misspelt.err, "capstan: error: plugins remove: there is no plugin 'test-plane' in " +
                              (data() / "capstan/plugins").string() +
                              ". Did you mean 'test-plain'? There is: test-plain.\n");
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_EQ(removed.out, "removed " + place().string() + "\n");
  EXPECT_THAT(installed(), IsEmpty());
  EXPECT_THAT(again.err, EndsWith(". There are none.\n"));
}

TEST_F(PluginsInstall, NeedsAFolderWhereTheUserHasNone) {
  const ProcessResult result =
      run_capstan(folder_, {"plugins", "install", plugin().string()}, {.environment = {"HOME=", "XDG_DATA_HOME="}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.err,
      "capstan: error: the environment has no HOME, under which the user's plugins are. Name a folder: --to DIR, or "
      "--from DIR to remove.\n");
}

}  // namespace
}  // namespace capstan::cli
