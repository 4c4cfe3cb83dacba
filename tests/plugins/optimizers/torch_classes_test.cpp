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

std::vector<std::int64_t> shape_of(const Json& recorded) {
  const Json* shape = recorded.find("shape");
  if (shape == nullptr) return {37};
  std::vector<std::int64_t> sizes;
  for (const Json& size : shape->as_array()) sizes.push_back(size.as_integer());
  return sizes;
}

/// The rows of a sparse gradient, as recorded/record_torch.py has them: nothing is left of all others.
void keep_rows(TestSlot& slot, int update) {
  const std::int64_t rows = slot.shape[0], width = slot.param.numel() / rows;
  slot.sparse = true;
  slot.rows.clear();
  for (std::int64_t row = 0; row < rows; ++row) {
    if ((row + update) % 3 == 0) {
      slot.rows.push_back(row);
    } else {
      slot.grad.narrow(0, row * width, width).zero_();
    }
  }
}

/// How far the plugin's fp32 may be from what was recorded.
double tolerance_of(const Json& recorded) {
  if (recorded.at("type").as_string() != "Muon") return 3e-6;
  // Newton and Schulz's iteration blows up a rounding of a small singular value by up to 500, and torch's are those of
  // bfloat16 unless it was made precise: 50 updates of 0.02.
  return recorded.find("precise") != nullptr ? 2e-5 : 0.02;
}

void expect_near(const std::vector<double>& actual, const Json& expected, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected.as_array()[i].as_number(), tolerance) << what << ", element " << i;
  }
}

class TorchClass : public ::testing::TestWithParam<Json> {};

// The problem is described in recorded/record_torch.py.
TEST_P(TorchClass, IsFollowedForFiftyUpdates) {
  const Json& recorded = GetParam();
  OptimizerUnderTest optimizer(recorded.at("plugin").as_string(), recorded.at("type").as_string(),
                               plugin_params(recorded));
  const std::vector<std::int64_t> shape = shape_of(recorded);
  const std::int64_t count = c10::multiply_integers(shape);
  TestSlot& slot = optimizer.add(noise(count, 1).view(shape));
  for (int update = 0; update < 50; ++update) {
    if (update == 25) optimizer.group(0)["lr"] = optimizer.group(0).at("lr").as_number() / 2;
    slot.grad = noise(count, 100 + update).add_(slot.param, 0.5);
    if (recorded.find("sparse") != nullptr) keep_rows(slot, update);
    optimizer.update();
    const std::string point = "after " + std::to_string(update + 1);
    if (const Json* expected = recorded.find(point)) {
      expect_near(values_of(slot.param), *expected, tolerance_of(recorded), point);
    }
  }
  if (const Json* average = recorded.find("ax")) expect_near(values_of(optimizer.state(0, "ax")), *average, 3e-6, "ax");
}

INSTANTIATE_TEST_SUITE_P(Recorded, TorchClass, ::testing::ValuesIn(recorded_cases()), [](const auto& info) {
  return info.param.at("type").as_string() + std::to_string(info.index);
});

}  // namespace
}  // namespace capstan::testing
