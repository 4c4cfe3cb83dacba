#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "core/config/language/language.hpp"
#include "core/config/language/validator.hpp"
#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/key_rows.hpp"

namespace capstan::testing {
namespace {

const Json* value_at(const Json& values, const std::string& path) {
  const Json* at = &values;
  std::istringstream parts(concrete_path(path));
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
    if (problem.severity == Problem::Severity::kError && problem.path == concrete_path(path)) out += problem.message;
  }
  for (const UnknownKey& key : validated.unknown) out += "unknown: " + key.path;
  return out;
}

TEST(Keys, TakeTheValuesOfTheReference) {
  for (const KeyRow& row : key_rows()) {
    for (const Json& value : row.good.as_array())
      EXPECT_EQ(errors_at(row.path, value), "") << row.path << " " << value.dump();
  }
}

TEST(Keys, RefuseOtherValuesAtTheirPath) {
  for (const KeyRow& row : key_rows()) {
    for (const Json& value : row.bad.as_array())
      EXPECT_NE(errors_at(row.path, value), "") << row.path << " " << value.dump();
  }
}

TEST(Keys, HaveTheDefaultsOfTheReference) {
  for (const KeyRow& row : key_rows()) {
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
  for (const KeyRow& row : key_rows()) with_row.insert(row.path);
  std::string without;
  for (const std::string& path : paths) {
    const SchemaNode* node = find_key(concrete_path(path));
    const bool frame = node && node->is_section();
    if (!with_row.contains(path) && !path.starts_with("capstan.") && !frame) without += path + "\n";
  }
  EXPECT_EQ(without, "");
  for (const std::string& path : with_row) EXPECT_NE(find_key(concrete_path(path)), nullptr) << path;
}

}  // namespace
}  // namespace capstan::testing
