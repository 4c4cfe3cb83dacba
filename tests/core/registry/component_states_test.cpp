#include "core/registry/component_states.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ComponentStates, AreNamedByTheirTypeAndTheirNumberAmongIt) {
  EXPECT_EQ(state_key("random_ltd", 0), "random_ltd");
  EXPECT_EQ(state_key("random_ltd", 1), "random_ltd 2");
  EXPECT_EQ(state_key("random_ltd", 9), "random_ltd 10");
}

TEST(ComponentStates, OfEarlierReleasesAreRenamedInTheOrderOfTheirPositions) {
  EXPECT_EQ(states_by_type(Json::parse(R"({"10 b": "y", "2 b": "x", "3 a": "z"})")),
            Json::parse(R"({"b": "x", "b 2": "y", "a": "z"})"));
  EXPECT_EQ(states_by_type(Json::object()), Json::object());
}

TEST(ComponentStates, OfThisReleaseKeepTheirNames) {
  for (const char* text :
       {R"({"a": "x", "a 2": "y"})", R"({"8bit": "x", "8bit 2": "y"})", R"({"8": "x", "8 2": "y"})"}) {
    EXPECT_EQ(states_by_type(Json::parse(text)), Json::parse(text));
  }
}

TEST(ComponentStates, ThatDoNotMeetAreNamed) {
  EXPECT_THAT(unmatched_states("observer", {"a", "b 2"}, {"a", "c"}),
              ElementsAre("holds no state of observer 'c', which begins anew.",
                          "holds a state of observer 'b 2', which this run does not have. The state is not used."));
  EXPECT_THAT(unmatched_states("observer", {"a"}, {"a"}), IsEmpty());
}

}  // namespace
}  // namespace capstan
