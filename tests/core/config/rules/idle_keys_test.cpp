#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

#include "core/config/config.hpp"
#include "core/config/language/language.hpp"
#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/key_rows.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Where configurations are consumed: the sources outside of core/config, and those in it that work values out.
class Consumers {
 public:
  Consumers() {
    const fs::path root = CAPSTAN_TEST_SOURCE_DIR;
    layouts_ = read_text(root / "plugins/attention/layouts/layouts.cpp");
    for (const char* folder : {"core", "cli"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        const std::string name = fs::relative(entry.path(), root).string();
        if (name.ends_with(".cpp") || name.ends_with(".hpp")) add(name, read_text(entry.path()));
      }
    }
  }

  bool of(const Key& key) const {
    std::string path = key.path;
    if (path.ends_with('>')) path.resize(path.rfind('.'));  // a free name is read with its section
    const std::string name = path.substr(path.rfind('.') + 1);
    const std::string quoted = "\"" + name + "\"";
    if (has(working_, "\"" + path + "\"")) return true;
    if (std::string_view(key.reader).starts_with("the validator")) return has(checking_, "\"" + path + "\"");
    if (path.starts_with("sparse_attention.") && has(layouts_, quoted)) return true;  // the mode's parameters
    if (has(choosing_, quoted) && !has(path, "_training")) return true;
    const auto found = members_.equal_range(name);
    return std::any_of(found.first, found.second, [&](const auto& one) {
      return std::regex_search(working_, std::regex("(\\.|->)" + one.second + "\\b"));
    });
  }

 private:
  void add(const std::string& name, const std::string& text) {
    if (name.starts_with("core/config/typed/")) {
      static const std::regex kMember(R"re(\{"(\w+)",\s*&(?:\w+\.)*(\w+)\})re");
      for (auto at = std::sregex_iterator(text.begin(), text.end(), kMember); at != std::sregex_iterator(); ++at) {
        members_.emplace((*at)[1], (*at)[2]);
      }
    }
    if (name.starts_with("core/config/rules/")) checking_ += text;
    if (name == "core/config/resolve/components.cpp") choosing_ += text;
    const bool works_values_out = name.starts_with("core/config/resolve/") || name == "core/config/read_config.cpp" ||
                                  name == "core/config/rules/precision_rules.cpp" ||
                                  name == "core/config/rules/rules.cpp";
    if (works_values_out || !name.starts_with("core/config/")) working_ += text;
  }

  std::string working_, checking_, choosing_, layouts_;
  std::multimap<std::string, std::string> members_;  // the key's name -> the typed member that gets its value
};

bool acts(const Key& key) { return *key.reader != '\0' && (key.flags & kNoEffect) == 0; }

TEST(KeyTables, EveryReaderThatARowNamesIsInTheSources) {
  const Consumers consumers;
  std::string without;
  for (const KeyTable& table : key_tables()) {
    for (const Key& key : table.keys) {
      const SchemaNode* node = find_key(concrete_path(key.path));
      if (acts(key) && node && !node->is_section() && !consumers.of(key)) without += std::string(key.path) + "\n";
    }
  }
  EXPECT_EQ(without, "") << "Nothing outside of core/config takes these: their rows must not name a reader.";
}

TEST(KeyTables, AKeyThatNothingTakesIsFoundOut) {
  const Consumers consumers;
  for (const char* path : {"fp16.auto_cast", "zero_optimization.mics_shard_size",
                           "zero_optimization.save_muon_momentum_buffer_in_memory"}) {
    Key key = *find_key(path)->key;
    key.reader = "the engine";
    EXPECT_FALSE(consumers.of(key)) << path;
  }
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.as_object()) {
    Json* present = into.find(key);
    if (present && present->is_object() && value.is_object()) {
      merge(*present, value);
    } else {
      into[key] = value;
    }
  }
}

bool reads_some(const SchemaNode& node) {
  return (node.key && acts(*node.key)) ||
         std::any_of(node.members.begin(), node.members.end(), [](const auto& one) { return reads_some(*one); });
}

/// The document in which a key would act if anything took it: its section is on, at stage 3.
Json document_for(const KeyRow& row, const Json& value) {
  Json document = Json::parse(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}})");
  for (auto dot = row.path.find('.'); dot != std::string::npos; dot = row.path.find('.', dot + 1)) {
    const std::string section = row.path.substr(0, dot);
    const SchemaNode* node = find_key(concrete_path(section));
    if (!node || node->members.empty()) continue;
    if (node->member("enabled") && reads_some(*node)) merge(document, document_with(section + ".enabled", Json(true)));
    if (node->member("device")) merge(document, document_with(section + ".device", Json("cpu")));
  }
  merge(document, document_with(row.path, value));
  return document;
}

std::string section_of(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

/// True when the key or a section around it is named, or an error refuses a neighbour.
bool is_named(const Problems& problems, const std::string& path) {
  return std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& problem) {
    const bool refused = problem.severity == Problem::Severity::kError;
    if (refused && section_of(problem.path) == section_of(path)) return true;
    return !problem.path.empty() && path.starts_with(problem.path) &&
           (path.size() == problem.path.size() || path[problem.path.size()] == '.' || path[problem.path.size()] == '[');
  });
}

TEST(IdleKeys, AKeyWithoutAReaderIsNamedWhenItGetsAnotherValueThanItsDefault) {
  ConfigContext context;
  context.world_size = 2;
  context.check_only = true;
  std::string silent;
  int tried = 0;
  for (const KeyRow& row : key_rows()) {
    const SchemaNode* node = find_key(concrete_path(row.path));
    ASSERT_NE(node, nullptr) << row.path;
    if (!node->key || node->is_section() || acts(*node->key)) continue;
    const Json::Array& good = row.good.as_array();
    const auto other = std::find_if(good.begin(), good.end(), [&](const Json& one) {
      const bool off = (row.path.ends_with(".enabled") && one == Json(false)) || one == Json("none");
      return !off && !one.is_null() && !(node->spec.fallback && *node->spec.fallback == one);
    });
    if (other == good.end()) continue;
    ++tried;
    const std::string document = document_for(row, *other).dump();
    const ConfigReading reading = read_config({document, "one.json", false}, context, PluginIndex());
    if (!is_named(reading.problems, concrete_path(row.path))) silent += row.path + " in " + document + "\n";
  }
  EXPECT_EQ(silent, "");
  EXPECT_GT(tried, 250);
}

TEST(IdleKeys, ASectionThatIsRefusedIsNotAlsoCalledIdle) {
  const ConfigReading reading = read_config(
      {R"({"train_batch_size": 8, "nebula": {"enabled": true, "enable_nebula_load": false}})", "one.json", false}, {},
      PluginIndex());
  std::string said;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.path.starts_with("nebula"))
      said += problem.path + ": " + problem.message.substr(0, problem.message.find(',')) + "\n";
  }
  EXPECT_EQ(said, "nebula.enabled: the section 'nebula' is not in this release\n");
}

TEST(IdleKeys, WhatConcernsStepsAloneIsNotSaidWhereNoneAreTaken) {
  ConfigContext context;
  context.takes_steps = false;
  EXPECT_TRUE(
      read_config({R"({"train_batch_size": 8})", "one.json", false}, context, PluginIndex()).problems.all().empty());
}

TEST(IdleKeys, TheProgramsOwnFileHasNoWordOnItsAutos) {
  ConfigContext context;
  context.says_autos = false;
  const char* text = R"({"train_batch_size": 8, "gradient_clipping": "auto"})";
  EXPECT_TRUE(read_config({text, "default.json", false}, context, PluginIndex()).problems.all().empty());
}

}  // namespace
}  // namespace capstan::testing
