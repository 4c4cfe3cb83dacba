#include <gtest/gtest.h>

#include <random>

#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/key_rows.hpp"

namespace capstan::testing {
namespace {

/// Values that keys of every type may meet.
const Json::Array& any_values() {
  static const Json::Array values = Json::parse(R"([null, true, false, 0, 1, -1, 2, 8, 0.5, 1e300, 9223372036854775807,
    -9223372036854775808, "", "auto", "x", "5", "cpu", "nvme", "snip_momentum", "fixed_root", "Adam", "gpt:tiny",
    [], [1], [null], ["x", 5], [[1], {}], [{"type": "Adam"}], {}, {"enabled": true}, {"a": {"b": 1}},
    {"type": "OneCycle", "params": []}, {"type": "Muon", "params": {"lr": [1, "x"]}}, {"params": {"dense_ratio": 2}},
    {"device": "nvme", "nvme_path": 5}, {"match": ["("], "params": {"lr": null}}])")
                                        .as_array();
  return values;
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.as_object()) {
    Json* present = into.find(key);
    if (present && present->is_object() && value.is_object()) {
      merge(*present, value);
    } else {
      into[key] = value;
    }
  }
}

TEST(Mixture, OfAnyKeysAndValuesIsReadOrRefused) {
  std::mt19937 random(11);
  const auto pick = [&](std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random); };
  std::vector<std::string> paths = {"optimizer.params.lr",
                                    "optimizer.params.max_grad_norm",
                                    "scheduler.params.warmup_type",
                                    "zero_optimization.cpu_offload",
                                    "bfloat16.enabled",
                                    "disable_allgather",
                                    "eigenvalue",
                                    "fp32_allreduce",
                                    "allgather_size",
                                    "quantize_training.quantize_bits",
                                    "capstan",
                                    "capstan.model",
                                    "capstan.plugins",
                                    "capstan.plugins.path",
                                    "capstan.plugins.sha256",
                                    "capstan.parameter_groups",
                                    "capstan.monitors",
                                    "capstan.observers[].type",
                                    "capstan.compressions[].type",
                                    "capstan.compressions",
                                    "capstan.data.path",
                                    "acme_probe",
                                    "acme_probe.every",
                                    "capstan.offload.optimizer"};
  for (const KeyRow& row : key_rows()) paths.push_back(row.path);
  for (int round = 0; round < 1500; ++round) {
    Json document = Json::object();
    for (std::size_t keys = 1 + pick(8); keys > 0; --keys) {
      merge(document, document_with(paths[pick(paths.size())], any_values()[pick(any_values().size())]));
    }
    // Whole sections that are switched on meet rules that lone keys do not.
    if (pick(3) == 0)
      merge(document, Json::parse(R"({"elasticity": {"enabled": true}, "zero_optimization": {"stage": 3}})"));
    ConfigContext context;
    context.check_only = pick(2) == 0;
    context.world_known = pick(2) == 0;
    context.world_size = static_cast<int>(1 + pick(16));
    const ConfigReading reading = read_config({document.dump(), "mixture", false}, context, all_components());
    ASSERT_NE(reading.config.has_value(), reading.problems.has_errors()) << document.dump();
  }
}

}  // namespace
}  // namespace capstan::testing
