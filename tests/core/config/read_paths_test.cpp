// The paths by which code reads values in force are keys of the tables: a misspelt path would read nothing, for ever.

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "core/config/language/language.hpp"
#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;

struct KnownPaths {
  std::set<std::string> keys;        // of the tables, and the sections that keys lie in
  std::set<std::string> of_plugins;  // objects whose members a manifest defines

  bool have(const std::string& path) const {
    if (keys.count(path) > 0) return true;
    const std::size_t end = path.rfind('.');
    return end != std::string::npos && of_plugins.count(path.substr(0, end)) > 0;
  }
};

KnownPaths known_paths() {
  KnownPaths known;
  for (const KeyTable& table : key_tables()) {
    for (const Key& key : table.keys) {
      const std::string path = key.path;
      for (std::size_t end = path.find('.'); end != std::string::npos; end = path.find('.', end + 1)) {
        known.keys.insert(path.substr(0, end));
      }
      known.keys.insert(path);
      if ((key.flags & kPlugin) != 0) known.of_plugins.insert(path);
    }
  }
  return known;
}

TEST(ReadPaths, AreKeysOfTheTables) {
  const KnownPaths known = known_paths();
  const std::regex read(
      R"re(values_?\.(?:find|flag|integer|number|text|given|derive|consume)\(\s*"([a-z0-9_.]+)"[,)])re",
      std::regex::icase);
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(CAPSTAN_TEST_SOURCE_DIR) / "core/config")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = read_text(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), read), end; at != end; ++at) {
      const std::string path = (*at)[1];
      EXPECT_TRUE(known.have(path)) << entry.path() << " reads '" << path << "', which is not a key of the tables";
      ++count;
    }
  }
  EXPECT_GT(count, 100U);
}

}  // namespace
}  // namespace capstan::testing
