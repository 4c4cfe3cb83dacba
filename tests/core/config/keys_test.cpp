#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "core/config/language.hpp"
#include "core/config/validator.hpp"
#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

struct Row {
  std::string path, type, fallback;
  Json good, bad;
};

std::vector<Row> rows() {
  std::vector<Row> out;
  std::istringstream lines(read_text(configs_folder() / "keys.tsv"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string good, bad;
    Row row;
    std::getline(fields, row.path, '\t');
    std::getline(fields, row.type, '\t');
    std::getline(fields, row.fallback, '\t');
    std::getline(fields, good, '\t');
    std::getline(fields, bad, '\t');
    row.good = Json::parse(good);
    row.bad = Json::parse(bad);
    out.push_back(std::move(row));
  }
  return out;
}

/// A document that holds `value` at the path, a free name being "x" and lists having one element.
Json document_with(const std::string& path, const Json& value) {
  const auto dot = path.find('.');
  std::string key = path.substr(0, dot);
  const bool list = key.ends_with("[]");
  if (list) key.resize(key.size() - 2);
  if (key.starts_with('<')) key = "x";
  Json inner = dot == std::string::npos ? value : document_with(path.substr(dot + 1), value);
  Json out = Json::object();
  out[key] = list ? Json(Json::Array{inner}) : inner;
  return out;
}

std::string concrete(std::string path) {
  for (auto open = path.find('<'); open != std::string::npos; open = path.find('<')) {
    path.replace(open, path.find('>') - open + 1, "x");
  }
  for (auto list = path.find("[]"); list != std::string::npos; list = path.find("[]")) path.replace(list, 2, "[0]");
  return path;
}

const Json* value_at(const Json& values, const std::string& path) {
  const Json* at = &values;
  std::istringstream parts(concrete(path));
  for (std::string part; at && std::getline(parts, part, '.');) {
    const auto bracket = part.find('[');
    at = at->find(part.substr(0, bracket));
    if (at && bracket != std::string::npos) at = &at->as_array().at(0);
  }
  return at;
}

/// The errors at the path itself; others, such as missing neighbours, are not this row's.
std::string errors_at(const std::string& path, const Json& value, Json* effective = nullptr) {
  Problems problems;
  const Validated validated = validate(document_with(path, value), {}, problems);
  if (effective) *effective = validated.effective;
  std::string out;
  for (const Problem& problem : problems.all()) {
    if (problem.severity == Problem::Severity::kError && problem.path == concrete(path)) out += problem.message;
  }
  for (const UnknownKey& key : validated.unknown) out += "unknown: " + key.path;
  return out;
}

TEST(Keys, TakeTheValuesOfTheReference) {
  for (const Row& row : rows()) {
    for (const Json& value : row.good.as_array())
      EXPECT_EQ(errors_at(row.path, value), "") << row.path << " " << value.dump();
  }
}

TEST(Keys, RefuseOtherValuesAtTheirPath) {
  for (const Row& row : rows()) {
    for (const Json& value : row.bad.as_array())
      EXPECT_NE(errors_at(row.path, value), "") << row.path << " " << value.dump();
  }
}

TEST(Keys, HaveTheDefaultsOfTheReference) {
  for (const Row& row : rows()) {
    if (row.fallback == "skip" || row.type == "object") continue;
    const auto dot = row.path.rfind('.');
    Json effective = Json::object();
    if (dot != std::string::npos) {
      errors_at(row.path.substr(0, dot), Json::object(), &effective);
    } else {
      Problems problems;
      effective = validate(Json::object(), {}, problems).effective;
    }
    const Json* value = value_at(effective, row.path);
    const bool absent = row.fallback == "none" || row.fallback == "required";
    if (absent) {
      EXPECT_TRUE(!value || value->is_null()) << row.path << " is " << value->dump();
    } else {
      ASSERT_TRUE(value) << row.path;
      EXPECT_TRUE(*value == Json::parse(row.fallback)) << row.path << " is " << value->dump();
    }
  }
}

void collect(const SchemaNode& node, std::set<std::string>& paths) {
  if (node.key) paths.insert(node.path);
  for (const auto& member : node.members) collect(*member, paths);
  if (node.any_member) collect(*node.any_member, paths);
  if (node.element) collect(*node.element, paths);
}

TEST(Keys, AllHaveARowButForOursAndTheFrames) {
  std::set<std::string> paths, with_row;
  collect(language(), paths);
  for (const Row& row : rows()) with_row.insert(row.path);
  std::string without;
  for (const std::string& path : paths) {
    const SchemaNode* node = find_key(concrete(path));
    const bool frame = node && node->is_section();
    if (!with_row.contains(path) && !path.starts_with("capstan.") && !frame) without += path + "\n";
  }
  EXPECT_EQ(without, "");
  for (const std::string& path : with_row) EXPECT_NE(find_key(concrete(path)), nullptr) << path;
}

}  // namespace
}  // namespace capstan::testing
