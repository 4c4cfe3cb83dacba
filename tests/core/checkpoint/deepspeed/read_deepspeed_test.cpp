// A checkpoint of Capstan in every layout of DeepSpeed, written by torch.save, is what it was, and trains on to the
// bit.

#include "core/checkpoint/deepspeed/read_deepspeed.hpp"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/export.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/engine/small_model.hpp"
#include "tests/support/readers.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing_support::SmallRun;

constexpr const char* kConfig = R"({"train_batch_size": 8, "steps_per_print": null,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0.01}}})";
constexpr const char* kTag = "global_step2";

/// Whole tensors by parameter and state.
using Values = std::map<std::pair<std::string, std::string>, at::Tensor>;

Values values_of(const CheckpointContents& contents) {
  Values values;
  std::map<std::pair<std::string, std::string>, std::int64_t> given;
  for (const CheckpointTensor& part : contents.tensors) {
    const std::pair key(part.parameter, part.state);
    at::Tensor& whole = values[key];
    if (!whole.defined()) whole = part.values.new_zeros(part.shape);
    whole.view({-1}).narrow(0, part.offset, part.values.numel()).copy_(part.values.reshape({-1}));
    given[key] += part.values.numel();
  }
  for (const auto& [key, whole] : values) EXPECT_EQ(given[key], whole.numel()) << key.second << " of " << key.first;
  return values;
}

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "";
}

class ReadDeepSpeed : public testing::Test {
 protected:
  /// Two steps of a run, written by one Python for all tests.
  static void SetUpTestSuite() {
    if (test::reader_python().empty()) return;
    folder_ = std::make_unique<test::TemporaryFolder>();
    SmallRun run(kConfig);
    run.steps(2);
    run.engine.save_checkpoint(*folder_ / "own", kTag);
    const std::string command = test::reader_python() +
                                " -W ignore " CAPSTAN_TEST_SOURCE_DIR
                                "/tests/core/checkpoint/deepspeed/write_checkpoints.py " +
                                (*folder_ / "own").string() + " " + kTag + " " + folder_->path().string();
    written_ = std::system(command.c_str()) == 0;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void SetUp() override {
    if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
    ASSERT_TRUE(written_) << "write_checkpoints.py has failed";
  }

  static std::string folder(const std::string& layout) { return (*folder_ / layout).string(); }

  static std::unique_ptr<test::TemporaryFolder> folder_;
  static bool written_;
};

std::unique_ptr<test::TemporaryFolder> ReadDeepSpeed::folder_;
bool ReadDeepSpeed::written_ = false;

const std::vector<std::string>& named_layouts() {
  static const std::vector<std::string> all = {"flat-1", "flat-2",   "flat-3",   "aligned", "elastic",   "bf16",
                                               "wide",   "stage3-1", "stage3-3", "stream",  "universal", "two-groups"};
  return all;
}

TEST_F(ReadDeepSpeed, EveryLayoutHoldsTheParametersAndStatesThatWereSaved) {
  const Values own = values_of(read_checkpoint(folder("own"), kTag));
  for (const std::string& layout : named_layouts()) {
    SCOPED_TRACE(layout);
    const Values theirs = values_of(read_checkpoint(folder(layout), latest_tag(folder(layout))));
    int compared = 0;
    for (const auto& [key, values] : own) {
      // DeepSpeed counts the steps of a group, whether or not a parameter has had a gradient.
      if (key.first.empty() || (key.first == "unused" && key.second == "step")) continue;
      const auto found = theirs.find(key);
      ASSERT_NE(found, theirs.end()) << key.second << " of " << key.first;
      EXPECT_TRUE(at::equal(found->second, values.view(found->second.sizes()))) << key.second << " of " << key.first;
      ++compared;
    }
    EXPECT_EQ(compared,
              4 * 4 + 1);  // values, two moments and the step of 4 parameters but for one step; one buffer, one frozen
  }
}

TEST_F(ReadDeepSpeed, TrainsOnToTheBitFromEveryLayout) {
  SmallRun straight(kConfig);
  straight.steps(2);
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(straight.step());
  std::vector<std::string> layouts = named_layouts();
  layouts.insert(layouts.end(), {"stage0", "stage0-16bit", "stage0-fused"});
  std::erase(layouts, "two-groups");
  for (const std::string& layout : layouts) {
    SCOPED_TRACE(layout);
    SmallRun resumed(kConfig, /*weights_seed=*/11);
    resumed.engine.load_checkpoint(folder(layout));
    EXPECT_EQ(resumed.engine.progress().global_steps, 2);
    EXPECT_EQ(resumed.engine.progress().global_samples, 16);
    resumed.next_batch = 2;
    for (const double loss : losses) EXPECT_EQ(resumed.step(), loss);
    EXPECT_TRUE(at::equal(resumed.model.parameters[0].tensor, straight.model.parameters[0].tensor));
  }
}

/// A run with the keys that the file's configuration has goes on with the bits that the file has; one with fp32 masters
/// takes them as they are.
TEST_F(ReadDeepSpeed, MastersAndMomentsOf16BitsAreTakenAsTheyAre) {
  const Values own = values_of(read_checkpoint(folder("own"), kTag));
  for (const char* layout : {"low-flat-2", "low-stage3-3"}) {
    SCOPED_TRACE(layout);
    const Values theirs = values_of(read_checkpoint(folder(layout), kTag));
    for (const char* parameter : {"w1", "w2", "b1"}) {
      for (const char* state : {"param", "exp_avg", "exp_avg_sq"}) {
        const at::Tensor& found = theirs.at({parameter, state});
        ASSERT_EQ(found.scalar_type(), at::kBFloat16) << state;
        EXPECT_TRUE(at::equal(found, own.at({parameter, state}).to(at::kBFloat16).view(found.sizes()))) << state;
      }
    }
    std::string low = kConfig;
    low.insert(low.rfind('}'), R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                             "bf16_optimizer_states": true})");
    for (const std::string& config : {low, std::string(kConfig)}) {
      SmallRun resumed(config, /*weights_seed=*/11);
      resumed.engine.load_checkpoint(folder(layout));
      EXPECT_EQ(resumed.engine.progress().global_steps, 2);
      EXPECT_TRUE(at::equal(resumed.model.parameters[0].tensor.detach().to(at::kFloat),
                            own.at({"w1", "param"}).to(at::kBFloat16).to(at::kFloat)));
    }
  }
}

TEST_F(ReadDeepSpeed, WeightsOfStage0In16BitsAreExportedAsTheirMasters) {
  const Values own = values_of(read_checkpoint(folder("own"), kTag));
  for (const char* layout : {"stage0-16bit", "stage0-fused"}) {
    const std::string file = (*folder_ / "weights.safetensors").string();
    export_checkpoint(folder(layout), kTag, ExportFormat::kSafetensors, file);
    for (const SafetensorsEntry& entry : read_safetensors(file)) {
      const std::string state = entry.name == "buffer" ? "buffer" : "param";
      EXPECT_TRUE(at::equal(entry.values, own.at({entry.name, state}))) << layout << ": " << entry.name;
    }
  }
}

TEST_F(ReadDeepSpeed, WeightsAloneGoToAnEngineThatBegins) {
  const Values own = values_of(read_checkpoint(folder("own"), kTag));
  for (const std::string& from : {folder("stage3-3"), folder("stage0-16bit") + ":" + kTag}) {
    SmallRun run(kConfig, /*weights_seed=*/11);
    run.engine.load_weights(from);
    EXPECT_TRUE(at::equal(run.model.parameters[0].tensor, own.at({"w1", "param"}))) << from;
    EXPECT_TRUE(at::equal(run.model.parameters[4].tensor, own.at({"frozen", "param"}))) << from;
    EXPECT_EQ(run.engine.progress().global_steps, 0);
  }
}

/// The same steps as from the weights alone, but for the counters.
TEST_F(ReadDeepSpeed, StatesOfTheOptimizerMayBeginAnewAndTheScheduleWithThem) {
  const std::string config = R"({"train_batch_size": 8, "steps_per_print": null,
      "optimizer": {"type": "Adam", "params": {"lr": 0.05}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.05, "warmup_num_steps": 4,
                                                   "warmup_type": "linear"}}})";
  const test::TemporaryFolder saved;
  SmallRun two_steps(config);
  two_steps.steps(2);
  for (const char* layout : {"own", "flat-2", "stage3-3", "stage0-16bit"}) {
    SCOPED_TRACE(layout);
    SmallRun fresh(config, /*weights_seed=*/11), resumed(config, /*weights_seed=*/12);
    fresh.engine.load_weights(folder(layout));
    resumed.engine.load_checkpoint(folder(layout), "", nullptr, {.optimizer_states = false, .schedule = false});
    EXPECT_EQ(resumed.engine.progress().global_steps, 2);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(resumed.step(), fresh.step());
    EXPECT_EQ(resumed.engine.next_lr(), fresh.engine.next_lr());

    // The schedule stands in the checkpoint as it does here.
    resumed.engine.save_checkpoint(saved.path(), layout);
    SmallRun again(config, /*weights_seed=*/13);
    again.engine.load_checkpoint(saved.path(), layout);
    again.next_batch = 2;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(again.step(), fresh.step());
    EXPECT_TRUE(at::equal(again.model.parameters[0].tensor, fresh.model.parameters[0].tensor));

    // With the place of the schedule that the checkpoint has, two updates behind its start.
    SmallRun further(config, /*weights_seed=*/14);
    further.engine.load_checkpoint(folder(layout), "", nullptr, {.optimizer_states = false});
    EXPECT_EQ(further.engine.next_lr(), two_steps.engine.next_lr());
  }
}

TEST_F(ReadDeepSpeed, TellsWhatIsLostAndGivesTheRestOfTheClientState) {
  const Json state = read_checkpoint_state(folder("flat-2"), kTag);
  const Json& client = state.at("client_state");
  EXPECT_EQ(
      client,
      Json::parse(R"({"note": "grüße", "pair": [1, "b"], "big": "1180591620717411303424", "tensor": [0, 1, 2]})"));
  EXPECT_EQ(state.at("written_by"), Json("DeepSpeed 0.19.8"));
  EXPECT_EQ(state.at("loss_scaler"), Json::parse(R"({"scale": 512, "step": 3, "last_overflow": -1, "hysteresis": 1})"));
  EXPECT_EQ(state.at("notes").size(), 2u);
  EXPECT_EQ(state.at("notes").as_array()[0],
            Json("client state 'theirs' cannot be read (an object of __main__.Foreign) and is left out."));
  EXPECT_THAT(state.at("notes").as_array()[1].as_string(), HasSubstr("saves no states of random number generators"));
}

TEST_F(ReadDeepSpeed, TellsWhichClientStateJsonDoesNotHold) {
  const Json state = read_checkpoint_state(folder("odd-client"), kTag);
  EXPECT_EQ(state.at("client_state").at("last"), Json(7));
  std::vector<std::string> left_out;
  for (const Json& note : state.at("notes").as_array()) {
    if (note.as_string().starts_with("client state '")) left_out.push_back(note.as_string().substr(14));
  }
  const std::string behind = ") and is left out.", large = "' cannot be read (it is too large or too deep";
  EXPECT_THAT(left_out, testing::ElementsAre(
                            "theirs' cannot be read (an object of __main__.Foreign" + behind,
                            "best' cannot be read (a number that is not finite" + behind,
                            "losses' cannot be read (a number that is not finite" + behind,
                            "keys' cannot be read (two keys, 'a tuple of 2', that JSON cannot tell apart" + behind,
                            "cycle" + large + behind, "rows" + large + behind, "deep" + large + behind));
}

TEST_F(ReadDeepSpeed, ARunOfAnotherOptimizerModelOrGroupsIsRefused) {
  SmallRun adam(R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.05}}})");
  EXPECT_THAT(fault_of([&] { adam.engine.load_checkpoint(folder("flat-2")); }),
              HasSubstr("was saved with optimizer AdamW, this run uses Adam."));
  SmallRun grouped(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}},
      "capstan": {"parameter_groups": [{"match": "b1", "params": {"lr": 0.1}}]}})");
  EXPECT_THAT(fault_of([&] { grouped.engine.load_checkpoint(folder("stage0")); }),
              HasSubstr("optimizer.param_groups: has 1 parameter groups, and this run has 2. At ZeRO stage 0"));
  // Weights need no groups.
  grouped.engine.load_weights(folder("stage0-16bit"));
  const Values own = values_of(read_checkpoint(folder("own"), kTag));
  EXPECT_TRUE(at::equal(grouped.model.parameters[0].tensor, own.at({"w1", "param"})));
}

TEST_F(ReadDeepSpeed, WhatIsDamagedIsNamedWithItsFile) {
  const Json messages = Json::parse(test::read_bytes(*folder_ / "damaged/messages.json"));
  EXPECT_GE(messages.size(), 33u);
  for (const auto& [name, message] : messages.as_object()) {
    const std::string damaged = folder("damaged/" + name);
    testing::internal::CaptureStdout();
    const std::string fault = fault_of([&] { read_checkpoint(damaged, latest_tag(damaged)); });
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << name << ": its pickle was run";
    EXPECT_THAT(fault, HasSubstr(message.as_string())) << name;
    EXPECT_THAT(fault, HasSubstr(damaged)) << name;
  }
}

}  // namespace
}  // namespace capstan
