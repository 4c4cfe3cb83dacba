#include "core/text/toml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

std::string_view at(std::string_view text, const Json& value) { return text.substr(*value.offset()); }

TEST(Toml, ReadsEveryTypeOfValue) {
  const Json json = parse_toml(
      "flag = true\ncount = 7\nrate = 1e-3\nname = \"Lion\"\nbetas = [0.9, 0.999]\npath = 'C:\\raw'\nzero = 1.0\n",
      "plugin.toml");

  EXPECT_TRUE(json.at("flag").as_bool());
  EXPECT_EQ(json.at("count").as_integer(), 7);
  EXPECT_DOUBLE_EQ(json.at("rate").as_number(), 1e-3);
  EXPECT_EQ(json.at("name").as_string(), "Lion");
  EXPECT_DOUBLE_EQ(json.at("betas").as_array()[1].as_number(), 0.999);
  EXPECT_EQ(json.at("path").as_string(), "C:\\raw");
  EXPECT_FALSE(json.at("zero").is_integer());
}

TEST(Toml, KeepsTheOrderOfTheText) {
  const Json json = parse_toml("zebra = 1\napple = 2\n[middle]\nb = 1\na = 2\n[early]\n", "x");

  std::vector<std::string> names;
  for (const auto& [name, value] : json.as_object()) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("zebra", "apple", "middle", "early"));
  EXPECT_EQ(json.at("middle").as_object()[0].first, "b");
}

TEST(Toml, BuildsTablesArraysOfTablesAndDottedKeys) {
  const Json json = parse_toml(
      "[[components]]\nkind = 'optimizer'\n[components.params.lr]\ntype = 'number'\n[[components]]\na.b.c = {d = 1}\n",
      "x");

  ASSERT_EQ(json.at("components").size(), 2u);
  EXPECT_EQ(json.at("components").as_array()[0].at("params").at("lr").at("type").as_string(), "number");
  EXPECT_EQ(json.at("components").as_array()[1].at("a").at("b").at("c").at("d").as_integer(), 1);
}

TEST(Toml, RemembersWhereEachKeyStood) {
  const std::string text = "# größe\n'schlüssel ü' = 1\nnext = { inner = 2 }\nlist = [1, 22]\n";
  const Json json = parse_toml(text, "x");

  EXPECT_THAT(at(text, json.at("next")), StartsWith("next ="));
  EXPECT_THAT(at(text, json.at("next").at("inner")), StartsWith("inner ="));
  EXPECT_THAT(at(text, json.at("schlüssel ü")), StartsWith("'schlüssel"));
  EXPECT_THAT(at(text, json.at("list").as_array()[1]), StartsWith("22"));
}

TEST(Toml, CountsColumnsInCharactersAndOffsetsInBytes) {
  const std::string text = "a = {'ä' = 1, b = 2}\n";

  EXPECT_THAT(at(text, parse_toml(text, "x").at("a").at("b")), StartsWith("b = 2"));
}

TEST(Toml, AcceptsAByteOrderMark) {
  const std::string text = "\xEF\xBB\xBFkey = 1\n";

  EXPECT_THAT(at(text, parse_toml(text, "x").at("key")), StartsWith("key ="));
}

TEST(Toml, NamesTheFileLineAndColumnOfAMistake) {
  EXPECT_THAT([] { parse_toml("a = 1\nb = = 2\n", "ds_config.toml"); },
              ThrowsMessage<ConfigError>(StartsWith("ds_config.toml:2:5: not valid TOML: ")));
  EXPECT_THAT([] { parse_toml("a = 1\na = 2\n", "ds_config.toml"); },
              ThrowsMessage<ConfigError>(StartsWith("ds_config.toml:2:")));
}

TEST(Toml, RefusesDatesAndTimes) {
  EXPECT_THAT([] { parse_toml("x = 1\nday = 2024-01-01\n", "f.toml"); },
              ThrowsMessage<ConfigError>(
                  ::testing::StrEq("f.toml:2:7: dates and times have no meaning here. Write a string in quotes.")));
}

TEST(Toml, ReportsAHeaderThatOpensWithACommentSign) {
  EXPECT_THAT([] { parse_toml("[#", "f.toml"); },
              ThrowsMessage<ConfigError>(HasSubstr("f.toml:1:2: not valid TOML: ")));
}

TEST(Toml, ReportsLettersOfEveryScriptWhereASpaceMightStand) {
  for (char32_t c = 0xA1; c <= 0x2FFF; ++c) {
    if (c == 0x1680 || c == 0x180E || (c >= 0x2000 && c <= 0x200B) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
        c == 0x205F || c == 0x2060) {
      continue;  // spaces and line ends, in the eyes of the library
    }
    std::string letter;
    if (c >= 0x800) letter += static_cast<char>(0xE0 | c >> 12);
    letter += static_cast<char>(c >= 0x800 ? 0x80 | (c >> 6 & 0x3F) : 0xC0 | c >> 6);
    letter += static_cast<char>(0x80 | (c & 0x3F));
    EXPECT_THROW(parse_toml("a = 1 " + letter, "x"), ConfigError) << std::hex << static_cast<int>(c);
    EXPECT_THROW(parse_toml(letter + " = 1", "x"), ConfigError) << std::hex << static_cast<int>(c);
  }
}

TEST(Toml, RefusesKeysOfAbsurdDepthInsteadOfOverflowingTheStack) {
  std::string deep = "a";
  for (int i = 0; i < 1'000'000; ++i) deep += ".a";

  for (const std::string& text : {deep + " = 1", "[" + deep + "]", "x = {" + deep + " = 1}"}) {
    EXPECT_THAT([&] { parse_toml(text, "f.toml"); },
                ThrowsMessage<ConfigError>(HasSubstr(": nested deeper than 200 levels.")));
  }
}

TEST(Toml, RefusesValuesDeeperThanJsonMayBeWithTheSameWords) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };

  EXPECT_NO_THROW(parse_toml("x = " + nested(190), "f.toml"));
  EXPECT_THAT([&] { parse_toml("x = " + nested(1'000'000), "f.toml"); },
              ThrowsMessage<ConfigError>(HasSubstr(": nested deeper than 200 levels.")));
}

TEST(Toml, DotsInStringsCommentsAndNumbersAreNotKeyParts) {
  std::string numbers;
  for (int i = 0; i < 200; ++i) numbers += "0.5, ";
  const std::string dots(500, '.');

  const Json json = parse_toml(
      "# it's " + dots + "\ntext = \"\\\"" + dots + "\"\nmore = '''\n'" + dots + "\n'''\nlist = [" + numbers + "]\n",
      "x");

  EXPECT_EQ(json.at("list").size(), 200u);
  EXPECT_EQ(json.at("text").as_string(), "\"" + dots);
}

TEST(Toml, ReadsALongLineInLinearTime) {
  std::string text = "a = [";
  for (int i = 0; i < 300'000; ++i) text += "1,";

  EXPECT_EQ(parse_toml(text + "]", "x").at("a").size(), 300'000u);
}

TEST(Toml, SurvivesMutatedDocuments) {
  const std::string seed =
      "# c\nname = \"acme\"\n[abi]\nplugin = '1.0'\n[[components]]\nkind = \"optimizer\"\nparams = { lr = { type = "
      "\"number\", min = 0.0 } }\nlist = [1, 2.5, true, \"\\u00e4\", '''x\ny''']\n[[components.state]]\na.b = 1_000\n";
  std::mt19937 random(7);
  const std::string spice = "[]{}=.,#\"'\\\n\r\t\xff\xc3 0_-+:Tie";

  for (int round = 0; round < 20000; ++round) {
    std::string text = seed;
    for (unsigned i = 0, edits = 1 + random() % 4; i < edits; ++i) {
      const std::size_t place = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[place] = spice[random() % spice.size()];
          break;
        case 1:
          text.insert(place, 1, spice[random() % spice.size()]);
          break;
        default:
          text.erase(place, 1 + random() % 8);
          break;
      }
      if (text.empty()) text = "[";
    }
    try {
      parse_toml(text, "x");
    } catch (const ConfigError&) {
    }
  }
}

}  // namespace
}  // namespace capstan
