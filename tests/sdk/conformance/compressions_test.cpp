// The kit on the bundled compressions with parameters that name modules: their defaults compress nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "sdk/conformance/conformance.hpp"

namespace capstan::conformance {
namespace {

std::filesystem::path plugin(const std::string& name) {
  return CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/compressions/libcapstan_compression_" + name + ".so";
}

/// Outcomes by the names of the kind's cases; a failure is said.
std::map<std::string, Outcome> outcomes_of(const std::string& type, const std::string& params) {
  const std::string prefix = "compression/" + type + "/";
  std::map<std::string, Outcome> outcomes;
  for (const Result& result : check(plugin(type), {.only = prefix, .params = Json::parse(params)})) {
    EXPECT_NE(result.outcome, Outcome::kFailed) << result.name << ": " << result.text;
    outcomes[result.name.substr(prefix.size())] = result.outcome;
  }
  return outcomes;
}

std::string weights(int bits, const std::string& type, int groups, const std::string& modules) {
  return R"({"shared_parameters": {"enabled": true, "schedule_offset": 3, "quantize_groups": )" +
         std::to_string(groups) + R"(, "quantization_type": ")" + type +
         R"(", "rounding": "nearest", "quantize_weight_in_forward": true, "quantizer_kernel": false,
             "quantize_verbose": false, "fp16_mixed_quantize": {"enabled": false, "quantize_change_ratio": 0.001}},
           "different_groups": {"wq1": {"params": {"start_bits": )" +
         std::to_string(bits) + R"(, "target_bits": )" + std::to_string(bits) +
         R"(, "quantization_period": 0}, "modules": [)" + modules + R"(], "related_modules": null}}})";
}

constexpr const char* kLayers = R"("blocks.0.fc", "proj", "embed")";

TEST(WeightQuantization, KeepsToTheRulesWithEveryKindOfBits) {
  const std::string all = std::string(kLayers) + R"(, "conv")";
  for (const std::string& params :
       {weights(8, "symmetric", 1, all), weights(4, "asymmetric", 32, all), weights(8, "asymmetric", 1, kLayers),
        weights(3, "symmetric", 4, kLayers), weights(2, "symmetric", 4, kLayers)}) {
    SCOPED_TRACE(params);
    const auto outcomes = outcomes_of("weight_quantization", params);
    for (const char* name : {"plan", "active", "pieces", "statistics", "in_place", "writes", "finite", "codes"}) {
      EXPECT_EQ(outcomes.at(name), Outcome::kPassed) << name;
    }
  }
}

TEST(WeightQuantization, KeepsToTheRulesInTheUpdate) {
  const auto falling = [](int start, int target, const std::string& shared) {
    return R"({"shared_parameters": {"enabled": true, "schedule_offset": 3, "quantize_groups": 4,
              "quantize_weight_in_forward": false)" +
           shared + R"(}, "different_groups": {"wq1": {"params": {"start_bits": )" + std::to_string(start) +
           R"(, "target_bits": )" + std::to_string(target) + R"(, "quantization_period": 5}, "modules": [)" + kLayers +
           R"(, "conv"]}}})";
  };
  for (const std::string& params :
       {falling(8, 4, ""), falling(7, 4, R"(, "quantization_type": "asymmetric", "rounding": "stochastic")"),
        falling(2, 1, ""), falling(1, 1, "")}) {
    SCOPED_TRACE(params);
    const auto outcomes = outcomes_of("weight_quantization", params);
    for (const char* name : {"plan", "active", "pieces", "statistics", "in_place", "writes", "finite", "codes"}) {
      EXPECT_EQ(outcomes.at(name), Outcome::kPassed) << name;
    }
  }
  const std::string mixed = R"(, "fp16_mixed_quantize": {"enabled": true, "quantize_change_ratio": 0.01})";
  EXPECT_EQ(outcomes_of("weight_quantization", falling(8, 4, mixed)).at("codes"), Outcome::kSkipped);
}

TEST(WeightQuantization, HasNoCodesOfMoreThanEightBits) {
  const auto outcomes = outcomes_of("weight_quantization", weights(16, "symmetric", 1, kLayers));
  EXPECT_EQ(outcomes.at("pieces"), Outcome::kPassed);
  EXPECT_EQ(outcomes.at("codes"), Outcome::kSkipped);
}

}  // namespace
}  // namespace capstan::conformance
