#include "core/checkpoint/state_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StateText, ValuesComeBackAsTheyWere) {
  const Json state = Json::parse(
      R"({"steps": 9007199254740993, "lr": 0.1, "third": 0.3333333333333333, "tiny": 5e-324, "whole": 2.0,
          "a text": {"$number": "seven"}, "nested": {"list": [1, null, true, "täxt"], "empty": {}}})");

  const Json read = parse_state(state_text(state), "state");

  EXPECT_EQ(read, state);
  EXPECT_FALSE(read.at("whole").is_integer());
}

TEST(StateText, NumbersThatJsonLacksComeBack) {
  Json state = Json::object();
  state["best"] = std::numeric_limits<double>::infinity();
  state["list"] = Json(Json::Array{-std::numeric_limits<double>::infinity(), std::nan("")});

  const Json read = parse_state(state_text(state), "state");

  EXPECT_EQ(read.at("best").as_number(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(read.at("list").as_array()[0].as_number(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(read.at("list").as_array()[1].as_number()));
}

TEST(StateText, DefectsAreErrorsOfThatFile) {
  EXPECT_THAT([] { parse_state("{", "file 'x'"); }, ThrowsMessage<RuntimeFault>(HasSubstr("file 'x': JSON, line 1")));
  EXPECT_THAT([] { parse_state(std::string(100'000, '['), "file 'x'"); },
              ThrowsMessage<RuntimeFault>("file 'x': it nests too deep."));
}

}  // namespace
}  // namespace capstan
