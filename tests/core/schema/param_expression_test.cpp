#include "core/schema/param_expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace capstan {
namespace {

KeySpec param(const std::string& name, KeySpec::Type type) {
  KeySpec spec;
  spec.name = name;
  spec.type = type;
  return spec;
}

std::vector<KeySpec> specs() {
  KeySpec betas = param("betas", KeySpec::Type::kArray);
  betas.element = KeySpec::Type::kNumber;
  betas.length = 2;
  KeySpec rates = param("rate", KeySpec::Type::kNumber);
  rates.per_group = true;
  return {param("a", KeySpec::Type::kInteger),
          param("b", KeySpec::Type::kNumber),
          param("on", KeySpec::Type::kBoolean),
          param("mode", KeySpec::Type::kString),
          param("warm-up", KeySpec::Type::kNumber),
          std::move(betas),
          std::move(rates)};
}

constexpr const char* kParams =
    R"({"a": 3, "b": 0.5, "on": true, "mode": "fast", "warm-up": 2, "betas": [0.9, 0.99], "rate": [1, 2]})";

/// The value as JSON, or "nothing".
std::string value(const std::string& text, const std::string& params = kParams) {
  const auto result = ParamExpression::parse(text, specs()).evaluate(Json::parse(params));
  return result ? result->dump() : "nothing";
}

std::string fault(const std::string& text) {
  try {
    ParamExpression::parse(text, specs());
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ParamExpression, BindsAsArithmeticAndLogicDo) {
  EXPECT_EQ(value("1 + 2 * a"), "7");
  EXPECT_EQ(value("(1 + 2) * a"), "9");
  EXPECT_EQ(value("10 - 4 - 3"), "3");
  EXPECT_EQ(value("-a + 1"), "-2");
  EXPECT_EQ(value("a / 2"), "1.5");
  EXPECT_EQ(value("a % 2 == 1"), "true");
  EXPECT_EQ(value("not on or a > 2 and b < 1"), "true");
  EXPECT_EQ(value("(not on or a > 2) and b > 1"), "false");
  EXPECT_EQ(value("not a == 3"), "false");
  EXPECT_EQ(value("`warm-up` < a"), "true");
  EXPECT_EQ(value("betas[0] < betas[1] and betas[1] < 1"), "true");
  EXPECT_EQ(value("mode == 'fast' and mode != \"exact\""), "true");
  EXPECT_EQ(value("a >= 3 and a <= 3.0 and 3e0 == a"), "true");
}

TEST(ParamExpression, DependsOnWhatIsGivenOnly) {
  EXPECT_EQ(value("a < b", R"({"a": 1})"), "nothing");
  EXPECT_EQ(value("a < b", R"({"a": 1, "b": null})"), "nothing");
  EXPECT_EQ(value("a + 1", "{}"), "nothing");
  EXPECT_EQ(value("not on", "{}"), "nothing");
  EXPECT_EQ(value("given(a)", R"({"a": 1})"), "true");
  EXPECT_EQ(value("given(a)", R"({"a": null})"), "false");
  // One side settles it.
  EXPECT_EQ(value("on or a < b", R"({"on": true})"), "true");
  EXPECT_EQ(value("a < b or on", R"({"on": true})"), "true");
  EXPECT_EQ(value("a < b and on", R"({"on": false})"), "false");
  EXPECT_EQ(value("a < b and on", R"({"on": true})"), "nothing");
}

TEST(ParamExpression, ComparesNoListWithANumber) {
  EXPECT_EQ(value("rate <= 1"), "nothing");
  EXPECT_EQ(value("rate == 1"), "nothing");
  EXPECT_EQ(value("rate[1] <= 2"), "true");
  EXPECT_EQ(value("rate[5] <= 2"), "nothing");
  EXPECT_EQ(value("rate <= 1", R"({"rate": 1})"), "true");
}

TEST(ParamExpression, HasNoValueWhereArithmeticHasNone) {
  EXPECT_EQ(value("a / 0 > 1"), "nothing");
  EXPECT_EQ(value("a % 0 == 0"), "nothing");
}

TEST(ParamExpression, NamesTheParametersInTheOrderOfTheText) {
  EXPECT_THAT(ParamExpression::parse("b < a and given(mode)", specs()).names(),
              ::testing::ElementsAre("b", "a", "mode"));
}

TEST(ParamExpression, SaysWhatItCannotRead) {
  EXPECT_EQ(fault(""), "at character 1: expected a parameter or a value, found the end.");
  EXPECT_EQ(fault("a < b < 1"), "at character 7: expected the end, found '<'.");
  EXPECT_EQ(fault("(a < b"), "at character 7: expected ')', found the end.");
  EXPECT_EQ(fault("a = b"), "at character 3: '=' has no meaning here.");
  EXPECT_EQ(fault("mode == 'fast"), "at character 9: the ' is not closed.");
  EXPECT_EQ(fault("ab < b"), "at character 1: 'ab' is not a parameter of this component. Did you mean 'a'?");
  EXPECT_EQ(fault("given(a"), "at character 8: expected ')', found the end.");
  EXPECT_EQ(fault("given('1')"), "at character 7: expected the name of a parameter, found '1'.");
  EXPECT_EQ(fault("betas[x] < 1"), "at character 7: expected the index of an element, 0 for the first, found 'x'.");
  EXPECT_EQ(fault("betas[2] < 1"), "at character 7: 'betas' has 2 elements, the first is 0.");
  EXPECT_EQ(fault("a[0] < 1"), "at character 1: 'a' is not a list.");
  EXPECT_EQ(fault("a < mode"), "at character 3: '<' needs a number, and has a text.");
  EXPECT_EQ(fault("mode == 1"), "at character 6: '==' needs a text, and has a number.");
  EXPECT_EQ(fault("a and on"), "at character 3: 'and' needs true or false, and has a number.");
  EXPECT_EQ(fault("not a"), "at character 1: 'not' needs true or false, and has a number.");
  EXPECT_EQ(fault("1e999 < a"), "at character 1: the number is out of range.");
  EXPECT_EQ(fault(std::string(1001, '1')), "has 1001 characters; at most 1000 are read.");
  EXPECT_EQ(fault(std::string(60, '(')), "at character 51: nested deeper than 50 levels.");
  EXPECT_EQ(fault(std::string(61, '-')), "at character 51: nested deeper than 50 levels.");
}

}  // namespace
}  // namespace capstan
