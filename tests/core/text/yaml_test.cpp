#include "core/text/yaml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/text/relaxed.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;

Json read(const std::string& text) {
  Problems problems;
  const auto value = parse_yaml(text, problems);
  EXPECT_FALSE(problems.has_errors()) << problems.all().front().text("yaml");
  return value.value_or(Json());
}

/// The only problem of a text, with its place.
std::string refusal(const std::string& text) {
  Problems problems;
  const auto value = parse_yaml(text, problems);
  EXPECT_EQ(problems.all().size(), 1u);
  return problems.all().empty() ? "none" : problems.all().front().text("c.yml");
}

TEST(Yaml, ReadsMappingsListsAndScalars) {
  EXPECT_EQ(read("# head\n---\na: 1\nb:\n  c: [1, 2.5]\n  d:\n    - x\n    - {e: ~}\nf: null\n"),
            Json::parse(R"({"a": 1, "b": {"c": [1, 2.5], "d": ["x", {"e": null}]}, "f": null})"));
}

TEST(Yaml, TakesPlainScalarsForNumbersAndBooleansAndQuotedOnesForText) {
  EXPECT_EQ(read("a: 5e-5\nb: 500_000_000\nc: +3\nd: -.5\ne: yes\nf: Off\ng: '5'\nh: \"yes\"\ni: 1.2.3\n"
                 "k: nan\nl: .inf\nm: 0x10\nn: 99999999999999999999\no: !!str 7\n"),
            Json::parse(R"({"a": 5e-5, "b": 500000000, "c": 3, "d": -0.5, "e": true, "f": false, "g": "5", "h": "yes",
                            "i": "1.2.3", "k": "nan", "l": ".inf", "m": "0x10",
                            "n": 99999999999999999999.0, "o": "7"})"));
}

TEST(Yaml, KnowsWhereKeysStand) {
  const std::string text = "\xEF\xBB\xBF# c\r\na: 1\r\nbc:\r\n  d: 2\r\n";
  const Json value = read(text);
  EXPECT_EQ(value.at("a").offset(), text.find("a:"));
  EXPECT_EQ(value.at("bc").offset(), text.find("bc:"));
  EXPECT_EQ(value.at("bc").at("d").offset(), text.find("d: 2"));
}

TEST(Yaml, RefusesWhatHasNoMeaningHere) {
  EXPECT_EQ(refusal("a: &x 1\nb: *x\n"), "c.yml:2:4: aliases have no meaning here. Write the value in their place.");
  EXPECT_EQ(refusal("a: !mine 1\n"), "c.yml:1:4: the tag '!mine' has no meaning here. Remove it.");
  EXPECT_EQ(refusal("a: 1\n---\nb: 2\n"), "c.yml:1:1: several documents in one file. Keep one.");
  EXPECT_EQ(refusal("a: 1\nb: 2\na: 3\n"),
            "c.yml:3:1: a: given twice in one object, first at line 1. Keep one of them.");
  EXPECT_EQ(refusal("? [a, b]\n: 1\n"), "c.yml:1:3: a key is a name here, not a list or a mapping.");
  EXPECT_EQ(refusal("? ''\n: 1\n"), "c.yml:1:3: a name is missing before this ':'.");
  EXPECT_EQ(refusal("---\n- a\n"), "c.yml:1:1: a configuration is a mapping of keys to values, and this is none.");
  EXPECT_EQ(refusal(""), "c.yml:1:1: a configuration is a mapping of keys to values, and this is none.");
  EXPECT_THAT(refusal("a: {b: 1\n"), HasSubstr(": not valid YAML: "));
  EXPECT_EQ(refusal("a: \xFF\n"), "c.yml:1:4: not UTF-8 text from here on; save the file as UTF-8.");
}

TEST(Yaml, RefusesWhatIsTooLargeOrTooDeep) {
  EXPECT_EQ(refusal("a: " + std::string(kLargestYaml, 'x')), "c.yml: larger than 1 MiB (" +
                                                                 std::to_string(kLargestYaml + 3) +
                                                                 " bytes); a configuration has a few kilobytes.");
  EXPECT_THAT(refusal("a: " + std::string(300, '[') + std::string(300, ']')),
              HasSubstr(": nested deeper than 200 levels."));
  std::string many = "a: [";
  for (std::size_t i = 0; i < kMostValues; ++i) many += "1,";
  EXPECT_THAT(refusal(many + "]"), HasSubstr(": more than 20000 values; a configuration has a few hundred."));
  std::string longest(1001, 'k');
  longest += ": 1\n";
  EXPECT_EQ(refusal(longest), "c.yml:1:1: a key of 1001 bytes; the longest allowed has 1000.");
}

TEST(Yaml, IsToldFromJsonByAKeyOutsideQuotes) {
  for (const char* yaml : {"a: 1", "# c\n\na_b-c:\n  d: 1", "---\na: 1",
                           "\xEF\xBB\xBF"
                           "a :\t1",
                           "a:"})
    EXPECT_TRUE(looks_like_yaml(yaml)) << yaml;
  for (const char* other :
       {"", "{a: 1}", "{\"a\": 1}", "# c\n{\n\"a\": 1}", "\"a\": 1", "a = 1", "[a]\nb = 1", "hello", "http://x", "- a"})
    EXPECT_FALSE(looks_like_yaml(other)) << other;
}

}  // namespace
}  // namespace capstan
