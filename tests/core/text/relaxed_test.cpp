#include "core/text/relaxed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/config.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

/// Errors and warnings of a text, a line each: "1:5: ...".
std::string problems_of(std::string_view text) {
  Problems problems;
  parse_relaxed(text, problems);
  std::string out;
  for (const Problem& problem : problems.all()) {
    const bool error = problem.severity == Problem::Severity::kError;
    out += (error ? "error:" : "warning:") + problem.text("") + "\n";
  }
  return out;
}

Json value_of(std::string_view text) {
  Problems problems;
  const auto value = parse_relaxed(text, problems);
  return value.value_or(Json());
}

TEST(Relaxed, ReadsStrictJsonWithoutAWord) {
  const std::string text = R"({"a": [1, -2.5e3, true, null], "b": {"c": "x\u00e9\n\"\\"}})";
  EXPECT_EQ(problems_of(text), "");
  EXPECT_EQ(value_of(text), Json::parse(text));
  EXPECT_EQ(problems_of("\xEF\xBB\xBF{}"), "");
}

TEST(Relaxed, ReadsEachRelaxationWithOneWarning) {
  EXPECT_EQ(problems_of("{ // one\n # two\n /* three */ }"),
            "warning:1:3: comments are read here, but are not JSON.\n");
  EXPECT_EQ(problems_of("{\"a\": [1,],\n}"),
            "warning:1:9: a comma before a closing bracket is read here, but is not JSON.\n");
  EXPECT_EQ(
      problems_of("{\"a\": 1\n\"b\": 2\n\"c\": 3}"),
      "warning:1:8: members separated by a line break alone are read here, but JSON wants a comma between them.\n");
  EXPECT_EQ(problems_of("{'a': 'b'}"),
            "warning:1:2: single-quoted strings are read here, but JSON wants double quotes.\n");
  EXPECT_EQ(problems_of("{\"a\": None, \"b\": True, \"c\": False}"),
            "warning:1:7: None, True and False are read here, but JSON spells them null, true and false.\n");
}

TEST(Relaxed, GivesRelaxedTextItsMeaning) {
  EXPECT_EQ(value_of("{'a': 'say \"x\" \\'y\\'', /* c */ \"b\": [None, True,]\n\"c\": 5e8}"),
            Json::parse(R"({"a": "say \"x\" 'y'", "b": [null, true], "c": 500000000})"));
}

TEST(Relaxed, KnowsWhereEachMemberStands) {
  const Json value = value_of("{\"a\": 1,\n  'b': [10, // x\n  20]}");
  EXPECT_EQ(value.at("a").offset(), 1u);
  EXPECT_EQ(value.at("b").offset(), 11u);
  EXPECT_EQ(value.at("b").as_array()[1].offset(), 28u);
}

TEST(Relaxed, NamesRepeatedKeysAtAnyDepth) {
  EXPECT_EQ(problems_of("{\"a\": 1,\n\"b\": [{\"c\": 1, \"c\": 1}],\n\"\\u0061\": 2}"),
            "error:2:16: b[0].c: given twice in one object, first at line 2. Keep one of them.\n"
            "error:3:1: a: given twice in one object, first at line 1. Keep one of them.\n");
}

struct Refusal {
  const char* text;
  const char* message;
};

class RefusedText : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedText, IsNamedWithItsPlace) {
  EXPECT_EQ(problems_of(GetParam().text), std::string("error:") + GetParam().message + "\n");
}

INSTANTIATE_TEST_SUITE_P(
    Relaxed, RefusedText,
    ::testing::Values(
        Refusal{"", "1:1: the file is empty; the smallest configuration is {}."},
        Refusal{" \n ", "1:1: the file is empty; the smallest configuration is {}."},
        Refusal{"[1]", "1:1: a configuration is one object: it begins with '{'."},
        Refusal{"{\"a\": 1", "1:1: this '{' is never closed: the file ends inside it."},
        Refusal{"{\"a\": [1, 2\n}", "2:1: '}' closes the '[' of line 1; a ']' is missing."},
        Refusal{"{\"a\" 1}", "1:6: a ':' is missing after the key."},
        Refusal{"{\"a\" = 1}", "1:6: '=' stands where ':' should."},
        Refusal{"{\"a\": = 1}", "1:7: '=' stands where a value should."},
        Refusal{"{\"a\": 1 \"b\": 2}", "1:8: a comma or a closing bracket is missing here."},
        Refusal{"{\"a\": 1,, \"b\": 2}", "1:9: a value is missing between two commas."},
        Refusal{"{,}", "1:2: a value is missing before this comma."},
        Refusal{"{\"a\": }", "1:7: a value is missing before '}'."},
        Refusal{"{a: 1}", "1:2: a key needs double quotes: \"a\"."},
        Refusal{"{[1]: 1}", "1:2: a key in double quotes is expected here, not '['."},
        Refusal{"{\"a\": [true|false]}",
                "1:8: 'true|false' is the notation of a choice; write the one value that is meant."},
        Refusal{"{\"a\": ...}", "1:7: '...' is a placeholder; write what it stands for or remove it."},
        Refusal{"{...}", "1:2: '...' is a placeholder; write what it stands for or remove it."},
        Refusal{"{\"a\": 007}", "1:7: a number must not begin with 0."},
        Refusal{"{\"a\": .5}", "1:7: a number needs a digit before the point: 0.5."},
        Refusal{"{\"a\": 1.}", "1:7: a number needs a digit after the point: 1.0."},
        Refusal{"{\"a\": 0x10}", "1:7: JSON has no hexadecimal numbers."},
        Refusal{"{\"a\": +1}", "1:7: a number has no plus sign in JSON."},
        Refusal{"{\"a\": 1e}", "1:7: '1e' is not a number."},
        Refusal{"{\"a\": 12abc}", "1:7: '12abc' is not a number."},
        Refusal{"{\"a\": NaN}", "1:7: 'NaN' is not a value that a configuration can hold; write a finite number."},
        Refusal{"{\"a\": -Infinity}",
                "1:7: '-Infinity' is not a value that a configuration can hold; write a finite number."},
        Refusal{"{\"a\": 1e400}", "1:7: the number 1e400 (5 characters) is too large."},
        Refusal{"{} x",
                "1:4: the document ends at line 1; what follows belongs to no object. Is there a closing "
                "bracket too early, or text of another file?"},
        Refusal{"{\"a\": \"b}", "1:7: this string is never closed."},
        Refusal{"{\"a\": \"b\n\"}", "1:7: this string is not closed on its line; is a quote missing?"},
        Refusal{"{\"a\": \"\t\"}", "1:8: a control character inside a string; write it as an escape such as \\t."},
        Refusal{"{\"a\": \"\\q\"}", "1:8: JSON has no such escape; a backslash itself is written \\\\."},
        Refusal{"{\"a\": \"\\u12g4\"}", "1:8: \\u needs four hexadecimal digits."},
        Refusal{"{\"a\": \"\\ud800\"}", "1:8: half of a surrogate pair: such a \\u escape needs its other half."},
        Refusal{"{ /* a }", "1:3: this comment is never closed with */."},
        Refusal{"{\"a\": \"\xff\"}", "1:8: not UTF-8 text from here on; save the file as UTF-8."},
        Refusal{"\xff\xfe{", "1:1: this is UTF-16; save the file as UTF-8."},
        Refusal{"{\"a\": two}",
                "1:7: 'two' is not a JSON value: text needs double quotes. If it is the placeholder of a "
                "template, fill it in first."},
        Refusal{"{\"a\": ONE,\n\"b\": TWO}",
                "1:7: this is an unfilled template: 2 placeholders, ONE (line 1), TWO (line 2). Fill it in (with the "
                "program or the sed script that it was written for) before using it."},
        Refusal{
            "{\"a\": 0|1|2|3,\n\"b\": [true|false],\n...\n}",
            "1:7: this is the notation of documentation: 0|1|2|3 (line 1), true|false (line 2), ... (line 3). Write "
            "the one value that is meant, and what '...' stands for."},
        Refusal{"{\"a\": 0|1,\n\"b\": STAGE,\n\"c\": STAGE}",
                "1:7: this is an unfilled template: 3 placeholders, 0|1 (line 1), STAGE (line 2). Fill it in (with the "
                "program or the sed script that it was written for) before using it."},
        Refusal{"{ {% if x %} \"a\": {{ y }} {% endif %}",
                "1:3: this is an unfilled template: 3 placeholders, {% if x %} (line 1), {{ y }} (line 1), {% endif %} "
                "(line 1). Fill it in (with the program or the sed script that it was written for) before using it."},
        Refusal{"{\"a\": \"${STAGE}\"}",
                "1:7: this is an unfilled template: 1 placeholder, ${STAGE} (line 1). Fill it in (with the program or "
                "the sed "
                "script that it was written for) before using it."}));

TEST(Relaxed, SaysWhereTheLayoutMissesABracket) {
  const char* missing = " is still open here, and the file ends before all is closed.\n";
  EXPECT_EQ(
      problems_of("{\n  \"fp16\": {\n    \"enabled\": true,\n  \"zero_optimization\": {\n    \"stage\": 1\n  }\n}\n"),
      std::string("error:4:3: a '}' is probably missing before this line: the '{' of line 2") + missing);
  EXPECT_EQ(problems_of("{\n  \"optimizer\": {\n    \"params\": {\n      \"lr\": 1\n  },\n  \"a\": 1\n}\n"),
            std::string("error:5:3: a '}' is probably missing before this line: the '{' of line 3") + missing);
  EXPECT_EQ(problems_of("{\n\t\"a\": {\n\t\t\"b\": [1,\n\t\t2\n\t}\n}\n").substr(0, 10), "error:5:2:");
}

TEST(Relaxed, TrustsNoLayoutWhereThereIsNone) {
  EXPECT_EQ(problems_of("{\n\"a\": {\n\"b\": {\n\"c\": 1\n}\n}\n}\n"), "");
  EXPECT_EQ(problems_of("{\"a\": {\"b\": 1}\n"), "error:1:1: this '{' is never closed: the file ends inside it.\n");
}

TEST(RelaxedLimits, RefusesA400DigitNumberByItsLength) {
  EXPECT_EQ(problems_of("{\"a\": " + std::string(400, '9') + "}"),
            "error:1:7: the number " + std::string(40, '9') + "... (400 characters) is too large.\n");
}

TEST(RelaxedLimits, RefusesDepthAbove200ByThatNumber) {
  const auto nested = [](std::size_t depth) {
    return "{\"a\": " + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(problems_of(nested(200)), "");
  EXPECT_EQ(problems_of(nested(201)), "error:1:206: nested deeper than 200 levels.\n");
  EXPECT_EQ(problems_of(nested(10'000)), "error:1:206: nested deeper than 200 levels.\n");
}

TEST(RelaxedLimits, RefusesTextAbove16MiBByThatNumber) {
  EXPECT_EQ(problems_of("{\"a\": \"" + std::string(kLargestText, 'x') + "\"}"),
            "error:larger than 16 MiB (16777225 bytes); a configuration has a few kilobytes.\n");
}

TEST(RelaxedLimits, RefusesMoreValuesThanAConfigurationHas) {
  std::string text = "{\"a\": [0";
  for (int i = 0; i < 20'000; ++i) text += ",0";
  EXPECT_EQ(problems_of(text + "]}"), "error:1:40002: more than 20000 values; a configuration has a few hundred.\n");
}

TEST(RelaxedLimits, RefusesKeysThatAreNoNames) {
  EXPECT_EQ(problems_of("{\"" + std::string(1000, 'k') + "\": 1}"),
            "error:1:2: a key of 1002 bytes; the longest allowed has 1000.\n");
}

TEST(StrictJson, IsWhatTheParserAccepts) {
  Problems problems;
  const auto strict = make_strict("{'a': [1,], // c\n \"b\": None}", problems);
  ASSERT_TRUE(strict);
  EXPECT_EQ(strict->text, R"({"a":[1],"b":null})");
}

TEST(Json, IsNoDeeperThanAThousandLevels) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };

  EXPECT_EQ(Json::parse(nested(1000)).dump(), nested(1000));
  EXPECT_THAT([&] { Json::parse(nested(1'000'000)); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("nested deeper than 1000 levels")));
}

}  // namespace
}  // namespace capstan
