#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/errors.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

const std::string kModel = R"("layers": 4, "d": 32, "heads": 2, "seq": 16)";

/// Losses and parameters after some steps, and the next random number.
struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
  float next = 0;
};

Trained train(const std::string& capstan_members, const std::string& members, const std::string& model = kModel,
              std::shared_ptr<Communicator> ranks = nullptr) {
  torch::manual_seed(5);
  ProbeRun run(capstan_members, members, model, std::move(ranks));
  Trained trained;
  trained.losses = run.steps(3);
  const auto whole = run.engine->gather();
  for (const NamedTensor& item : run.engine->model().parameters()) {
    trained.parameters.push_back(item.tensor.detach().clone());
  }
  trained.next = torch::rand({1}).item<float>();
  return trained;
}

void expect_same_training(const std::string& recompute, const std::string& capstan_members, const std::string& members,
                          const std::string& model = kModel, const std::shared_ptr<Communicator>& ranks = nullptr) {
  SCOPED_TRACE(recompute);
  const Trained plain = train(capstan_members, members, model, ranks);
  const std::string with = (capstan_members.empty() ? "" : capstan_members + ", ") + recompute;
  const Trained again = train(with, members, model, ranks);
  EXPECT_EQ(again.losses, plain.losses);
  EXPECT_EQ(again.next, plain.next);
  ASSERT_EQ(again.parameters.size(), plain.parameters.size());
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(again.parameters[i].equal(plain.parameters[i])) << "parameter " << i;
  }
}

struct Setting {
  const char* name;
  std::string capstan_members, members;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

const Setting kSettings[] = {
    {"plain", "", ""},
    {"accumulation", "", R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2)"},
    {"dropped_tokens",
     R"("observers": [{"type": "TokenDrop", "params": {"layers": ["blocks.1", "blocks.2"], "keep": 0.5}}])", ""},
    {"random_ltd", "",
     R"("data_efficiency": {"enabled": true, "data_routing": {"enabled": true, "random_ltd": {"enabled": true,
        "total_layer_num": 4, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 2], "model_mask_name": null, "model_type": "decoder",
        "hidden_state_order": "batch_seq_dim", "random_ltd_schedule": {"min_value": 8, "max_value": 16,
        "schedule_type": "fixed_linear", "schedule_config": {"require_steps": 10, "seq_per_step": 8}}}}})"},
    {"quantised_weights", "",
     R"("compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
        "quantize_weight_in_forward": true}, "different_groups": {"wq1": {"params": {"start_bits": 4, "target_bits": 4},
        "modules": ["blocks"]}}}})"},
    {"quantised_inputs_static", "",
     R"("compression_training": {"activation_quantization": {"shared_parameters": {"enabled": true,
        "range_calibration": "static", "schedule_offset": 0}, "different_groups": {"aq1": {"params": {"bits": 8},
        "modules": ["blocks"]}}}})"},
    {"quantised_inputs_dynamic", "",
     R"("compression_training": {"activation_quantization": {"shared_parameters": {"enabled": true,
        "range_calibration": "dynamic", "schedule_offset": 0}, "different_groups": {"aq1": {"params": {"bits": 8},
        "modules": ["blocks"]}}}})"},
    {"bf16", "", R"("bf16": {"enabled": true})"},
    {"fp16", "", R"("fp16": {"enabled": true, "initial_scale_power": 4})"},
    {"autocast", "", R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})"},
};

class Recompute : public ::testing::TestWithParam<Setting> {};

TEST_P(Recompute, ChangesNoBitOfATraining) {
  for (const char* recompute :
       {R"("recompute": {"check": "always"})", R"("recompute": {"every": 2, "check": "always"})",
        R"("recompute": {"keep": ["scaled_dot_product_attention"], "layers": ["\\.[023]$"], "check": "always"})"}) {
    expect_same_training(recompute, GetParam().capstan_members, GetParam().members);
  }
}

INSTANTIATE_TEST_SUITE_P(, Recompute, ::testing::ValuesIn(kSettings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RecomputeAtStage3, ChangesNoBitOnOneAndTwoRanks) {
  const std::string zero = R"("zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0})";
  for (const int ranks : {1, 2}) {
    test::expect_on_ranks(ranks, [&](Communicator& communicator) {
      const std::shared_ptr<Communicator> all(&communicator, [](Communicator*) {});
      expect_same_training(R"("recompute": {"check": "always"})", "", zero, kModel, all);
      expect_same_training(R"("recompute": {"every": 2, "keep": ["gelu"], "check": "always"})", "",
                           zero + R"(, "bf16": {"enabled": true})", kModel, all);
    });
  }
}

TEST(ActivationCheckpointing, IsSwitchedOnByTheIntervalOfPipelinesAndByAnyFlag) {
  for (const char* members : {R"("pipeline": {"activation_checkpoint_interval": 2})",
                              R"("activation_checkpointing": {"cpu_checkpointing": true})"}) {
    SCOPED_TRACE(members);
    ProbeRun run("", members);
    ASSERT_EQ(run.engine->config().observers.size(), 1u);
    const ComponentChoice& choice = run.engine->config().observers.front();
    EXPECT_EQ(choice.type, "activation_checkpointing");
    EXPECT_EQ(choice.params.at("every").as_integer(),
              std::string(members).find("pipeline") != std::string::npos ? 2 : 1);
    run.steps(1);
  }
  ProbeRun off("", R"("activation_checkpointing": {"cpu_checkpointing": false, "profile": false})");
  EXPECT_TRUE(off.engine->config().observers.empty());
}

const std::string kSlots =
    R"("activation_checkpointing": {"partition_activations": true, "contiguous_memory_optimization": true,
       "number_checkpoints": )";

TEST(ActivationCheckpointing, KeepsInputsInSlots) {
  const Trained plain = train("", ""), slots = train("", kSlots + "4}");
  EXPECT_EQ(slots.losses, plain.losses);
}

TEST(ActivationCheckpointing, TakesSlotsAgainAfterAnEvaluationAndAFailedForward) {
  ProbeRun run("", kSlots + "4}");
  run.steps(1);
  run.engine->eval_batch([&] { return run.batch(0); }, 2);
  Batch batch = run.batch(0);
  run.engine->forward(batch);  // whose backward never comes
  run.engine.reset();
  ProbeRun again("", kSlots + "4}");
  EXPECT_NO_THROW(again.steps(2));
}

TEST(ActivationCheckpointing, GivesContiguousMemoryUpWhereThereAreFewerSlotsThanRegions) {
  const auto warnings_of = [](const std::string& capstan_members, const std::string& members) {
    ::testing::internal::CaptureStderr();
    const Trained trained = train(capstan_members, members);
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(trained.losses, train("", "").losses);
    return text;
  };
  EXPECT_THAT(warnings_of("", kSlots + "3}"),
              HasSubstr("activation_checkpointing.contiguous_memory_optimization: is ignored, because "
                        "number_checkpoints is 3 and the inputs of 4 regions are kept. Set number_checkpoints to 4, or "
                        "remove both."));
  EXPECT_THAT(warnings_of(R"("recompute": {"every": 2})", kSlots + "1}"),
              HasSubstr("the inputs of 2 regions are kept"));
  EXPECT_THAT(warnings_of(R"("recompute": {"every": 4})", kSlots + "1}"), Not(HasSubstr("is ignored")));
}

TEST(ActivationCheckpointing, RefusesMoreInputsAtOnceThanSlots) {
  ProbeRun run("", kSlots + "4}");
  Batch first = run.batch(0), second = run.batch(1);
  const auto kept = run.engine->forward(first);
  EXPECT_THAT([&] { run.engine->forward(second); },
              ThrowsMessage<std::exception>(HasSubstr("number_checkpoints: 4, and all of them are in use when layer "
                                                      "'blocks.0' is to be kept")));
}

TEST(ActivationCheckpointing, RefusesLayersThatThereAreNot) {
  EXPECT_THAT([] { ProbeRun run(R"("recompute": {"layers": ["^block\\."]})"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("capstan.recompute.layers: '^block\\.' fits no layer"),
                                               HasSubstr("'blocks.0', 'blocks.1', 'blocks.2', 'blocks.3'"))));
  EXPECT_THAT([] { ProbeRun run(R"("recompute": {"layers": ["("]})"); },
              ThrowsMessage<ConfigError>(HasSubstr("capstan.recompute.layers[0]")));
  EXPECT_THAT([] { ProbeRun run(R"("recompute": {"every": 0})"); },
              ThrowsMessage<ConfigError>(HasSubstr("capstan.recompute.every")));
}

TEST(ActivationCheckpointing, RefusesToKeepAnOperatorThatThereIsNot) {
  ProbeRun run(R"("recompute": {"keep": ["scaled_dot_product_atention"]})");
  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<std::exception>(HasSubstr("Did you mean 'scaled_dot_product_attention'?")));
}

TEST(ActivationOffload, KeepsInputsOnAStore) {
  const TemporaryFolder folder;
  const Trained plain = train("", ""),
                stored =
                    train(R"("recompute": {}, "offload": {"activations": {"type": "nvme", "params": {"nvme_path": ")" +
                              folder.path().string() + R"("}}})",
                          "");
  EXPECT_EQ(stored.losses, plain.losses);
}

}  // namespace
}  // namespace capstan
