// docs/reference/plugins/manifest.md against what the reader of manifests knows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "core/registry/manifest.hpp"
#include "core/registry/plugin_kind.hpp"

namespace capstan {
namespace {

constexpr const char* kStable = "[abi]\nplugin = '1.0'\ntorch = { tier = 'stable', min = '2.11' }\n";

/// Everything that the reader looks for, in manifests of every kind and tier.
ManifestVocabulary known_vocabulary() {
  ManifestVocabulary all;
  const auto add = [&](const std::string& toml) {
    ManifestVocabulary found;
    PluginManifest::parse(toml, "manifest", &found);
    for (auto& [table, keys] : found) {
      for (auto& [key, words] : keys) all[table][key].merge(words);
    }
  };
  const std::string head = "schema = 1\nname = 'n'\nversion = '1'\n[[components]]\ntype = 'T'\n";
  for (const std::string& kind : plugin_kind_names()) add(head + "kind = '" + kind + "'\n" + kStable);
  add(head + "kind = 'observer'\nattach = ['layers']\n" + kStable);
  const std::string optimizer =
      "kind = 'optimizer'\nparams.p = { type = 'number' }\nstate = [{ name = 's' }]\n"
      "rules = [{ check = 'p > 0', message = 'm' }]\n[abi]\nplugin = '1.0'\n";
  add(head + optimizer + "torch.tier = 'none'\n");
  add(head + optimizer + "torch = { tier = 'pinned', version = '2.11', build_id = 'b' }\n");
  return all;
}

/// What a page of Markdown says: rows "| `key` | values | meaning |" below headings "## `[[components]]`". Words in
/// backquotes among the values are words that the key may have.
ManifestVocabulary vocabulary_on_page(std::istream& page) {
  const std::map<std::string, std::string> tables = {{"`plugin.toml`", ""},
                                                     {"`[abi]`", "abi"},
                                                     {"`[abi.torch]`", "abi.torch"},
                                                     {"`[[components]]`", "components[]"},
                                                     {"`[components.params]`", "components[].params.*"},
                                                     {"`[[components.rules]]`", "components[].rules[]"},
                                                     {"`[[components.state]]`", "components[].state[]"}};
  ManifestVocabulary found;
  const std::string* table = nullptr;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) {
      const auto heading = line.starts_with("## ") ? tables.find(line.substr(3)) : tables.end();
      table = heading == tables.end() ? nullptr : &heading->second;
    }
    std::smatch row;
    if (!table || !std::regex_match(line, row, std::regex(R"(\| `([a-z_]+)` \| ([^|]*) \| .* \|)"))) continue;
    auto& words = found[*table][row[1]];
    const std::string values = row[2];
    const std::regex word("`([a-z_0-9]+)`");
    for (std::sregex_iterator it(values.begin(), values.end(), word), end; it != end; ++it) words.insert((*it)[1]);
  }
  return found;
}

TEST(ManifestPage, HasEveryKeyAndWordThatTheReaderKnowsAndNoOther) {
  std::ifstream page(CAPSTAN_TEST_SOURCE_DIR "/docs/reference/plugins/manifest.md");
  const ManifestVocabulary written = vocabulary_on_page(page), known = known_vocabulary();
  const auto names = [](const ManifestVocabulary& vocabulary) {
    std::set<std::string> all;
    for (const auto& [table, keys] : vocabulary) {
      for (const auto& [key, words] : keys) {
        all.insert(table + " " + key);
        for (const std::string& word : words) all.insert(table + " " + key + " = " + word);
      }
    }
    return all;
  };
  EXPECT_THAT(names(written), ::testing::ContainerEq(names(known)));
}

TEST(ManifestPage, ExplainsEachTraitOnce) {
  std::ifstream page(CAPSTAN_TEST_SOURCE_DIR "/docs/reference/plugins/manifest.md");
  std::set<std::string> explained;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) inside = line == "### Traits";
    std::smatch row;
    if (inside && std::regex_match(line, row, std::regex(R"(\| `([a-z_]+)` \| .* \|)"))) {
      EXPECT_TRUE(explained.insert(row[1]).second) << row[1];
    }
  }
  const ManifestVocabulary known = known_vocabulary();
  EXPECT_THAT(explained, ::testing::ContainerEq(known.at("components[]").at("traits")));
}

}  // namespace
}  // namespace capstan
