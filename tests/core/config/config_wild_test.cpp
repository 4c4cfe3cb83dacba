#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

/// "<file>: accepted", then its errors and warnings, a line each, indented.
std::map<std::string, std::string> expected_verdicts() {
  std::map<std::string, std::string> verdicts;
  std::istringstream lines(read_text(configs_folder() / "wild/expected.txt"));
  std::string file;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') file = line.substr(0, line.find(':'));
    verdicts[file] += line + "\n";
  }
  return verdicts;
}

std::string verdict(const std::filesystem::path& file) {
  ConfigContext context;
  context.check_only = true;
  context.world_known = false;
  const ConfigReading reading = read_config(read_config_text(file.string()), context, all_components());
  std::string text = file.filename().string() + ": " + (reading.config ? "accepted" : "refused") + "\n";
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kNotice) continue;
    const bool error = problem.severity == Problem::Severity::kError;
    text += std::string(error ? "  error " : "  warning ") + problem.text("") + "\n";
  }
  return text;
}

TEST(ConfigWild, EveryFileGetsTheVerdictThatItsAuthorWouldAgreeWith) {
  auto expected = expected_verdicts();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder() / "wild")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    EXPECT_EQ(verdict(entry.path()), expected[entry.path().filename().string()]);
  }
  EXPECT_EQ(files, 100u);
}

/// A GPU takes each configuration that the CPU takes.
TEST(ConfigWild, EveryFileThatTheCpuTakesIsTakenByADevice) {
  // Stand-ins for observers that nobody has written yet run anywhere, as those that come with Capstan do.
  std::vector<IndexedPlugin> plugins = all_components().plugins();
  for (IndexedPlugin& plugin : plugins) {
    for (ComponentManifest& component : plugin.manifest.components) {
      if (component.kind == "observer") component.device = ComponentManifest::kAnyDevice;
    }
  }
  const PluginIndex components = PluginIndex::of(std::move(plugins));
  const auto errors_on = [&](const std::filesystem::path& file, const char* device) {
    ConfigContext context;
    context.check_only = true;
    context.world_size = 2;
    context.overrides = {{"capstan.run.device", device}};
    std::string text;
    const ConfigReading reading = read_config(read_config_text(file.string()), context, components);
    for (const Problem& problem : reading.problems.all()) {
      if (problem.severity == Problem::Severity::kError) text += problem.text("") + "\n";
    }
    return text;
  };
  std::size_t taken = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder() / "wild")) {
    if (entry.path().extension() != ".json" || !errors_on(entry.path(), "cpu").empty()) continue;
    ++taken;
    EXPECT_EQ(errors_on(entry.path(), "cuda"), "") << entry.path();
  }
  EXPECT_GT(taken, 35u);
}

}  // namespace
}  // namespace capstan::testing
