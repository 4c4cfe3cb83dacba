#include "core/registry/registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <utility>

#include "core/log.hpp"
#include "core/registry/file_hash.hpp"
#include "core/registry/host.hpp"
#include "core/registry/load_failure.hpp"
#include "core/registry/plugin_library.hpp"
#include "tests/core/registry/abi_version.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

/// A folder with one plugin, loaded by this test only.
class RegistryTest : public ::testing::Test {
 protected:
  void add(const std::string& plugin) { file_ = patched_copy(test_plugin(plugin), folder_ / "libcapstan_x.so"); }

  Registry registry(std::map<std::string, std::string> pins = {}) const {
    return Registry(PluginIndex::scan({{folder_.path(), "--plugin-path"}}), std::move(pins));
  }

  /// The refusal of `type`, with the file's path as FILE.
  std::string refusal(const std::string& type, const Json& params = Json::object(),
                      std::map<std::string, std::string> pins = {}) {
    try {
      registry(std::move(pins)).create("monitors[0].type", "monitor", type, params, &host_);
    } catch (const PluginError& error) {
      std::string text = error.what();
      for (auto at = text.find(file_.string()); at != std::string::npos; at = text.find(file_.string())) {
        text.replace(at, file_.string().size(), "FILE");
      }
      return text;
    }
    return "created";
  }

  static Json every(int value) {
    Json params;
    params["every"] = value;
    return params;
  }

  TemporaryFolder folder_;
  std::filesystem::path file_;
  capstan_host host_ = make_host();
};

TEST_F(RegistryTest, CreatesAComponentAndGivesItsVtable) {
  add("test_plain");
  const Component plain = registry().create("monitors[0].type", "monitor", "PLAIN", every(2), &host_);

  EXPECT_EQ(plain.manifest().type, "Plain");
  EXPECT_EQ(plain.plugin().file, file_);
  capstan_error error;
  EXPECT_EQ(plain.vtable<capstan_monitor>()->write(plain.self(), nullptr, 0, &error), CAPSTAN_OK);
}

TEST_F(RegistryTest, KeepsAComponentUsableAfterTheRegistryIsGone) {
  add("test_plain");
  auto made = std::make_unique<Registry>(registry());
  Component first = made->create("a", "monitor", "Plain", every(1), &host_);
  made.reset();
  const Component moved = std::move(first);

  EXPECT_EQ(moved.manifest().summary, "A monitor in plain C.");
}

TEST_F(RegistryTest, AnnouncesAPluginThatSomebodyBroughtOnceHoweverManyRegistriesLoadIt) {
  add("test_plain");
  ::testing::internal::CaptureStderr();
  Registry first = registry(), second = registry();
  first.load("a", "monitor", "Plain");
  first.load("a", "monitor", "Plain");
  second.create("a", "monitor", "Plain", every(1), &host_);

  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "capstan: loading plugin test-plain 1.2.0, " + file_.string() + "\n");
}

TEST_F(RegistryTest, QuotesWhatAComponentSaysWhenItRefusesItsParameters) {
  add("test_plain");

  EXPECT_EQ(refusal("Plain", every(13)),
            "monitors[0].type: monitor 'Plain' (FILE) could not be created: every: 13 is unlucky");
  EXPECT_EQ(refusal("Plain"), "monitors[0].type: monitor 'Plain' (FILE) could not be created: every: is missing.");
}

TEST_F(RegistryTest, SaysWhenAComponentFailsWithoutAReason) {
  add("broken_silence");

  EXPECT_EQ(refusal("Broken"),
            "monitors[0].type: monitor 'Broken' (FILE) could not be created: failed without saying why. Ask the "
            "plugin's author.");
}

TEST_F(RegistryTest, CatchesExceptionsThatAPluginLetsEscape) {
  add("test_throwing");
  Json params;
  params["integer"] = false;
  EXPECT_EQ(refusal("Throwing", params),
            "monitors[0].type: monitor 'Throwing' (FILE) could not be created: the plugin let an exception escape (no "
            "coffee left). It must catch it and return CAPSTAN_FAILED; the C++ SDK does that.");
  params["integer"] = true;
  EXPECT_EQ(refusal("Throwing", params),
            "monitors[0].type: monitor 'Throwing' (FILE) could not be created: the plugin let an exception escape (not "
            "a std::exception). It must catch it and return CAPSTAN_FAILED; the C++ SDK does that.");
}

TEST_F(RegistryTest, SaysWhatIsMissing) {
  add("test_plain");

  EXPECT_THAT(refusal("Plein"),
              ::testing::StartsWith("monitors[0].type: no plugin provides a monitor 'Plein'. Did you mean 'Plain' "
                                    "(test-plain 1.2.0)? Available: "));
}

TEST_F(RegistryTest, NamesAMissingDependency) {
  add("broken_dependency");

  EXPECT_EQ(refusal("Broken"),
            "FILE: cannot be loaded: its dependency libcapstan_absent.so.1 was not found. Install the package that "
            "brings it; on Debian, apt-file search libcapstan_absent.so.1 names it.");
}

TEST_F(RegistryTest, NamesAnUndefinedSymbolAsItsAuthorWroteIt) {
  add("broken_symbol");

  EXPECT_EQ(refusal("Broken"),
            "FILE: undefined symbol 'nowhere_at_all(int)'. The plugin was linked without -Wl,-z,defs; rebuild it with "
            "capstan_add_plugin().");
}

TEST_F(RegistryTest, RefusesALibraryWithoutTheEntry) {
  add("broken_entry");

  EXPECT_EQ(refusal("Broken"), "FILE: exports no capstan_plugin_v1. Was CAPSTAN_PLUGIN(...) left out of its sources?");
}

TEST_F(RegistryTest, RefusesCodeThatContradictsItsManifest) {
  add("broken_manifest");
  EXPECT_EQ(refusal("Broken"),
            "FILE: the manifest in its code is not the one in its .capstan.manifest section. Rebuild it with "
            "capstan_add_plugin().");
}

TEST_F(RegistryTest, RefusesCodeOfAnotherAbiThanItsManifest) {
  add("broken_abi");
  EXPECT_EQ(refusal("Broken"), "FILE: its code speaks plugin ABI 1.99, its manifest says " + abi_version() +
                                   ". Rebuild it with capstan_add_plugin() and one SDK.");
}

TEST_F(RegistryTest, RefusesAShortDescriptor) {
  add("broken_descriptor");
  EXPECT_EQ(refusal("Broken"),
            "FILE: capstan_plugin_v1() returns an incomplete descriptor. Make it with CAPSTAN_PLUGIN(...).");
}

TEST_F(RegistryTest, RefusesAShortComponent) {
  add("broken_component");
  EXPECT_EQ(refusal("Broken"),
            "FILE: the descriptor of component 0 is incomplete. Make it with the SDK of this release.");
}

TEST_F(RegistryTest, RefusesAComponentThatTheManifestDoesNotDeclare) {
  add("broken_name");
  EXPECT_EQ(refusal("Broken"),
            "FILE: provides monitor 'Other', which its manifest does not declare. Add it to plugin.toml.");
}

TEST_F(RegistryTest, RefusesAManifestThatPromisesMoreThanTheCodeHas) {
  add("broken_count");
  EXPECT_EQ(refusal("Broken"),
            "FILE: its manifest declares monitor 'Broken', but its code does not provide it. Is it missing from "
            "CAPSTAN_PLUGIN(...)?");
}

TEST_F(RegistryTest, RefusesAComponentWithoutTheFunctionOfItsKind) {
  add("broken_function");
  EXPECT_EQ(refusal("Broken"), "FILE: monitor 'Broken' has no function 'write', which the kind needs.");
}

TEST_F(RegistryTest, RefusesAFileThatBecameWorldWritableAfterTheScan) {
  add("test_plain");
  Registry registry = this->registry();
  ::chmod(file_.c_str(), 0666);

  EXPECT_THAT([&] { registry.create("a", "monitor", "Plain", every(1), &host_); },
              ThrowsMessage<PluginError>(::testing::HasSubstr(": everybody may write to this file, so nothing is ")));
}

TEST_F(RegistryTest, LoadsOnlyTheFileThatWasPinned) {
  add("test_plain");
  const std::string digest = sha256_of_file(file_);
  std::string upper = digest;
  std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);

  EXPECT_EQ(refusal("Plain", every(1), {{"libcapstan_x.so", std::string(64, '0')}}),
            "FILE: its SHA-256 is " + digest + ", capstan.plugins.sha256 wants " + std::string(64, '0') +
                ". It is not the file that was pinned, so it was not loaded.");
  EXPECT_EQ(refusal("Plain", every(1), {{"libcapstan_x.so", upper}, {"libcapstan_other.so", "0"}}), "created");
}

TEST_F(RegistryTest, LoadsOnlyTheBytesThatWereInstalled) {
  add("test_plain");
  const std::string digest = sha256_of_file(file_);
  const auto pinned = [&](const std::string& pin) {
    write_bytes(file_.string() + ".sha256", pin);
    return refusal("Plain", every(1));
  };

  EXPECT_EQ(pinned(digest + "  libcapstan_x.so\n"), "created");
  EXPECT_EQ(pinned(std::string(64, '0')), "FILE: its SHA-256 is " + digest + ", FILE.sha256 wants " +
                                              std::string(64, '0') +
                                              ". It is not the file that was pinned, so it was not loaded.");
  EXPECT_EQ(
      pinned("abc"),
      "FILE.sha256: does not begin with the 64 digits of a SHA-256, so libcapstan_x.so was not loaded. Install it "
      "again: capstan plugins install --force.");
}

/// Somebody who works in a plugin's folder between the check of a file and its loading: what loads it says so just
/// then.
class Meddler {
 public:
  explicit Meddler(std::function<void()> meddle) {
    meddle_ = std::move(meddle);
    log::set_before_line([] {
      if (meddle_) std::exchange(meddle_, nullptr)();
    });
  }
  ~Meddler() { log::set_before_line(nullptr); }
  bool came() const { return !meddle_; }

 private:
  static inline std::function<void()> meddle_;
};

TEST_F(RegistryTest, LoadsTheBytesThatWerePinnedThoughTheFileIsReplacedMeanwhile) {
  add("test_plain");
  const std::map<std::string, std::string> pins = {{"libcapstan_x.so", sha256_of_file(file_)}};
  const auto other = patched_copy(test_plugin("broken_entry"), folder_ / "other");
  const Meddler meddler([&] { std::filesystem::rename(other, file_); });

  EXPECT_EQ(refusal("Plain", every(1), pins), "created");
  EXPECT_TRUE(meddler.came());
}

TEST_F(RegistryTest, LoadsTheBytesThatWerePinnedThoughTheFileIsOverwrittenMeanwhile) {
  add("test_plain");
  const std::map<std::string, std::string> pins = {{"libcapstan_x.so", sha256_of_file(file_)}};
  const Meddler meddler([&] { write_bytes(file_, read_bytes(test_plugin("broken_entry"))); });

  EXPECT_EQ(refusal("Plain", every(1), pins), "created");
  EXPECT_TRUE(meddler.came());
}

TEST_F(RegistryTest, LoadsAPinnedFileAgainAfterAnotherOfItsNameWasLoaded) {
  add("test_plain");
  EXPECT_EQ(refusal("Plain", every(1)), "created");
  patched_copy(test_plugin("test_plain"), folder_ / "new", "A monitor in plain C.", "A monitor in plain B.");
  std::filesystem::rename(folder_ / "new", file_);

  EXPECT_EQ(refusal("Plain", every(1), {{"libcapstan_x.so", sha256_of_file(file_)}}), "created");
}

TEST_F(RegistryTest, NamesTheFileWhenAPinnedOneCannotBeLoaded) {
  add("broken_symbol");

  EXPECT_EQ(refusal("Broken", Json::object(), {{"libcapstan_x.so", sha256_of_file(file_)}}),
            "FILE: undefined symbol 'nowhere_at_all(int)'. The plugin was linked without -Wl,-z,defs; rebuild it with "
            "capstan_add_plugin().");
}

TEST_F(RegistryTest, RefusesPluginsThatNeedLibTorchInAProgramWithoutIt) {
  add("test_stable");

  EXPECT_EQ(refusal("Plain", every(1)),
            "FILE: needs LibTorch, which this program does not use. The engine's programs do.");
}

TEST_F(RegistryTest, LoadsALibraryBesideACopyOfItself) {
  add("test_plain");
  const auto copy = patched_copy(file_, folder_ / "libcapstan_y.so");
  const capstan_plugin* first = load_plugin_library(read_plugin(file_));

  EXPECT_EQ(load_plugin_library(read_plugin(file_)), first);
  EXPECT_NE(load_plugin_library(read_plugin(copy)), first);
}

TEST(FileHash, IsThatOfThePublishedVectors) {
  TemporaryFolder folder;
  write_bytes(folder / "empty", "");
  write_bytes(folder / "abc", "abc");
  write_bytes(folder / "million", std::string(1'000'000, 'a'));

  EXPECT_EQ(sha256_of_file(folder / "empty"), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of_file(folder / "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of_file(folder / "million"), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_THAT([&] { sha256_of_file(folder / "absent"); },
              ThrowsMessage<PluginError>(StrEq((folder / "absent").string() + ": cannot be read.")));
}

TEST(LoadFailure, GivesTheDebianPackageOfKnownLibraries) {
  EXPECT_EQ(explain_load_failure("/opt/libcapstan_offload_nvme.so",
                                 "liburing.so.2: cannot open shared object file: No such file or directory"),
            "/opt/libcapstan_offload_nvme.so: cannot be loaded: its dependency liburing.so.2 was not found. On Debian: "
            "apt install liburing2.");
  EXPECT_EQ(explain_load_failure("/x.so", "libtorch_cuda.so: cannot open shared object file: No such file"),
            "/x.so: cannot be loaded: its dependency libtorch_cuda.so was not found. It belongs to the CUDA build of "
            "LibTorch, which this process does not run.");
  EXPECT_EQ(explain_load_failure("/x.so", "libcudart.so.13: cannot open shared object file: No such file"),
            "/x.so: cannot be loaded: its dependency libcudart.so.13 was not found. It belongs to NVIDIA's CUDA "
            "libraries, which the torch wheel's nvidia-* packages bring.");
}

TEST(LoadFailure, TellsAFileBuiltOnANewerSystem) {
  EXPECT_EQ(explain_load_failure("/x.so",
                                 "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.99' not found (required by /x.so)"),
            "/x.so: cannot be loaded: it needs GLIBC_2.99, which this machine's libraries do not have. It was built on "
            "a newer system; rebuild it here.");
}

TEST(LoadFailure, QuotesWhatItDoesNotKnow) {
  EXPECT_EQ(explain_load_failure("/x.so", "/x.so: cannot enable executable stack"),
            "/x.so: cannot be loaded: /x.so: cannot enable executable stack.");
}

}  // namespace
}  // namespace capstan
