#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

std::vector<Json> recorded_cases() {
  std::ifstream file(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/optimizers/recorded/torch_classes.json");
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str()).at("cases").as_array();
}

/// The recorded parameters, and for Adam those that select the class that was recorded.
Json plugin_params(const Json& recorded) {
  Json params = recorded.at("params");
  if (recorded.at("plugin").as_string() != "adam") return params;
  params["torch_adam"] = true;
  params["adam_w_mode"] = recorded.at("type").as_string() == "AdamW";
  return params;
}

void expect_near(const std::vector<double>& actual, const Json& expected, const std::string& what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected.as_array()[i].as_number(), 3e-6) << what << ", element " << i;
  }
}

class TorchClass : public ::testing::TestWithParam<Json> {};

// The problem is described in recorded/record_torch.py.
TEST_P(TorchClass, IsFollowedForFiftyUpdates) {
  const Json& recorded = GetParam();
  OptimizerUnderTest optimizer(recorded.at("plugin").as_string(), recorded.at("type").as_string(),
                               plugin_params(recorded));
  TestSlot& slot = optimizer.add(noise(37, 1));
  for (int update = 0; update < 50; ++update) {
    if (update == 25) optimizer.group(0)["lr"] = optimizer.group(0).at("lr").as_number() / 2;
    slot.grad = noise(37, 100 + update).add_(slot.param, 0.5);
    optimizer.update();
    const std::string point = "after " + std::to_string(update + 1);
    if (const Json* expected = recorded.find(point)) expect_near(values_of(slot.param), *expected, point);
  }
  if (const Json* average = recorded.find("ax")) expect_near(values_of(optimizer.state(0, "ax")), *average, "ax");
}

INSTANTIATE_TEST_SUITE_P(Recorded, TorchClass, ::testing::ValuesIn(recorded_cases()), [](const auto& info) {
  return info.param.at("type").as_string() + std::to_string(info.index);
});

}  // namespace
}  // namespace capstan::testing
