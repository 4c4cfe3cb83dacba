// A state.json whose checksums fit, and whose content does not.

#include "core/keep/saved_run.hpp"

#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/engine/small_model.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::SmallRun;

struct Damage {
  std::function<void(Json& state)> make;
  std::string message;  // from "state.json" on
};

const std::vector<Damage>& damages() {
  constexpr const char* kSteps = ", and an integer from 0 to 1000000000000 is expected.";
  static const std::vector<Damage> all = {
      {[](Json& state) { state["global_samples"] = -100000; },
       "state.json: global_samples: is -100000, and an integer from 0 to 1000000000000000 is expected. The file is "
       "damaged, or another program has changed it: load another checkpoint."},
      {[](Json& state) { state["global_samples"] = std::numeric_limits<std::int64_t>::max(); },
       "state.json: global_samples: is 9223372036854775807, and"},
      {[](Json& state) { state.erase("global_samples"); },
       "state.json: global_samples: is missing. The file is damaged, or another program has changed it: load another "
       "checkpoint."},
      {[](Json& state) { state["global_steps"] = "four"; },
       std::string("state.json: global_steps: is \"four\"") + kSteps},
      {[](Json& state) { state["updates"] = 2.5; }, std::string("state.json: updates: is 2.5") + kSteps},
      {[](Json& state) { state["skipped_steps"] = -1; }, std::string("state.json: skipped_steps: is -1") + kSteps},
      {[](Json& state) { state["run"] = 3; }, "state.json: run: is 3, and a text is expected."},
      {[](Json& state) { state["world_size"] = 0; }, "state.json: world_size: is 0, and an integer from 1 to"},
      {[](Json& state) { state.erase("loss_scaler"); }, "state.json: loss_scaler: is missing."},
      {[](Json& state) { state["loss_scaler"] = "fp16"; },
       "state.json: loss_scaler: is \"fp16\", and an object is expected."},
      {[](Json& state) { state["loss_scaler"].erase("hysteresis"); },
       "state.json: loss_scaler.hysteresis: is missing."},
      {[](Json& state) { state["loss_scaler"]["scale"] = -2; },
       "state.json: loss_scaler.scale: is -2, and a positive number is expected."},
      {[](Json& state) { state["loss_scaler"]["hysteresis"] = 0; },
       "state.json: loss_scaler.hysteresis: is 0, and an integer from 1 to"},
      {[](Json& state) { state["loss_scaler"]["step"] = -7; }, "state.json: loss_scaler.step: is -7, and"},
      {[](Json& state) { state["groups"] = 3; }, "state.json: groups: is 3, and a list is expected."},
      {[](Json& state) { state["groups"].as_array()[0] = Json::object(); },
       "state.json: groups[0].base_lr: is missing."},
      {[](Json& state) { state["groups"].as_array()[0]["base_lr"] = NAN; },
       "state.json: groups[0].base_lr: is null, and a finite number is expected."},
      {[](Json& state) { state["groups"].as_array()[0]["numbers"] = 3; },
       "state.json: groups[0].numbers: is 3, and an object is expected."},
      {[](Json& state) { state["groups"].as_array()[0]["numbers"]["lr"] = Json::array(); },
       "state.json: groups[0].numbers.lr: is [], and a list of finite numbers is expected."},
      {[](Json& state) { state["groups"].as_array()[0]["numbers"] = Json::parse(R"({"rho": [0.5]})"); },
       ", numbers that the program had set: parameter group 0: optimizer 'AdamW' has no number 'rho'."},
      {[](Json& state) { state["groups"].as_array()[0]["numbers"] = Json::parse(R"({"lr": [-1]})"); },
       ", numbers that the program had set: a learning rate of -1.000000: it must be finite and not below 0."},
      {[](Json& state) { state.erase("optimizer"); }, "was saved with optimizer none, this run uses AdamW."},
      {[](Json& state) { state["optimizer"]["type"] = 3; },
       "state.json: optimizer.type: is 3, and a text is expected."},
      {[](Json& state) { state["optimizer"].erase("state"); }, "state.json: optimizer.state: is missing."},
      {[](Json& state) { state["scheduler"] = Json::array(); },
       "state.json: scheduler: is [], and an object is expected."},
      {[](Json& state) { state["observers"]["Freeze"] = 1; },
       "state.json: observers.Freeze: is 1, and a text is expected."},
      {[](Json& state) { state.erase("rng"); }, "state.json: rng: is missing."},
      {[](Json& state) { state["rng"].erase("cpu"); }, "state.json: rng.cpu: is missing."},
      {[](Json& state) { state["rng"]["cpu"] = "00zz"; },
       "state.json: rng.cpu: is \"00zz\", and a text of hexadecimal digits is expected."},
      {[](Json& state) { state["rng"]["cpu"] = "abc"; },
       "state.json: rng.cpu: is \"abc\", and an even number of hexadecimal digits is expected."},
      {[](Json& state) { state["rng"]["cpu"] = "00ff"; },
       "state.json: rng.cpu: is not the state of a random number generator of this LibTorch (2 bytes). Load another "
       "checkpoint."},
      {[](Json& state) { state["rng"]["cpu"] = std::string(2 * 5056, '7'); },
       "state.json: rng.cpu: is not the state of a random number generator of this LibTorch (5056 bytes)."},
      {[](Json& state) { state["format"] = 2; }, "state.json: its format is 2, this release reads format 1."},
      {[](Json& state) { state = Json::array(); }, "state.json: its format is missing, this release reads format 1."}};
  return all;
}

constexpr const char* kConfig = R"({"train_batch_size": 8, "steps_per_print": null, "fp16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}})";

TEST(SavedRun, IsRefusedAsAWholeAndNamesTheMember) {
  const test::TemporaryFolder folder;
  SmallRun run(kConfig), straight(kConfig);
  run.steps(2);
  straight.steps(2);
  run.engine.save_checkpoint(folder.path(), "good");
  for (const Damage& damage : damages()) {
    CheckpointContents contents = read_checkpoint(folder.path(), "good");
    // Whatever is taken over of a refused checkpoint is seen below.
    for (CheckpointTensor& tensor : contents.tensors) tensor.values = at::zeros_like(tensor.values);
    damage.make(contents.state);
    write_checkpoint(folder.path(), "bad", contents);
    EXPECT_THAT([&] { run.engine.load_checkpoint(folder.path(), "bad"); },
                ThrowsMessage<RuntimeFault>(HasSubstr(damage.message)));
  }
  run.steps(2);
  straight.steps(2);
  EXPECT_EQ(run.engine.mean_loss(), straight.engine.mean_loss());
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(straight.model.parameters[0].tensor));
}

/// All that is logged while `run` runs.
std::string logged_by(const std::function<void()>& run) {
  testing::internal::CaptureStderr();
  run();
  return testing::internal::GetCapturedStderr();
}

TEST(SavedRun, NamesWhatItHoldsAndNothingKeeps) {
  const test::TemporaryFolder folder;
  SmallRun run(kConfig);
  run.steps(2);
  run.engine.save_checkpoint(folder.path(), "good");
  const std::string where = folder.path().string() + "/more";
  EXPECT_EQ(logged_by([&] { run.engine.load_checkpoint(folder.path(), "good"); }), "");
  CheckpointContents contents = read_checkpoint(folder.path(), "good");
  contents.state["observers"]["Freeze"] = "text";
  contents.state["compressions"] = Json::parse(R"({"3 sparse_pruning": "text"})");
  contents.state["scheduler"] = Json::parse(R"({"type": "WarmupLR", "state": "text"})");
  const at::Tensor values = at::zeros_like(run.model.buffer);
  contents.tensors.push_back({"w1", "sparse_pruning.mask", {2}, 0, values});
  contents.tensors.push_back({"", "row_pruning.mask of w2", {2}, 0, values});
  contents.tensors.push_back({"running", "buffer", {2}, 0, values});
  write_checkpoint(folder.path(), "more", contents);
  const std::string logged = logged_by([&] { run.engine.load_checkpoint(folder.path(), "more"); });
  for (const char* sentence :
       {": holds a state of observer 'Freeze', which this run does not have. The state is not used.",
        ": holds a state of compression 'sparse_pruning', which this run does not have. The state is not used.",
        ": was saved with scheduler WarmupLR, this run has none: learning rates stay those of the configuration.",
        ": holds buffer 'running', which this model does not have. The values are not used.",
        ": holds state 'row_pruning.mask', 'sparse_pruning.mask', which nothing in this run keeps. The values are not "
        "used."}) {
    EXPECT_THAT(logged, HasSubstr(where + sentence));
  }
  run.steps(1);
}

std::vector<double> rate_and_betas(const Engine& engine) {
  std::vector<double> found;
  const std::vector<ParameterGroupView> groups = engine.parameter_groups();
  for (const auto& [name, values] : groups.at(0).numbers) {
    if (name == "lr" || name == "betas") found.insert(found.end(), values.begin(), values.end());
  }
  return found;
}

TEST(SavedRun, HasTheNumbersThatTheProgramHadSet) {
  const std::string config = R"({"train_batch_size": 8, "steps_per_print": null,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "betas": [0.9, 0.99]}}})";
  const test::TemporaryFolder folder;
  SmallRun run(config), resumed(config);
  run.steps(2);
  run.engine.save_checkpoint(folder.path(), "configured");
  run.engine.set_learning_rate(0, 0.0025);
  run.engine.set_group_number(0, "betas", {0.5, 0.75});
  run.engine.save_checkpoint(folder.path(), "set");
  const std::vector<double> configured{0.05, 0.9, 0.99}, set{0.0025, 0.5, 0.75};

  resumed.engine.load_checkpoint(folder.path(), "set");
  EXPECT_EQ(rate_and_betas(resumed.engine), set);
  EXPECT_EQ(resumed.engine.next_lr(), 0.0025);
  resumed.next_batch = run.next_batch;
  run.steps(2);
  resumed.steps(2);
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(resumed.model.parameters[0].tensor));

  // What the program had not set is the configuration's.
  run.engine.load_checkpoint(folder.path(), "configured");
  EXPECT_EQ(rate_and_betas(run.engine), configured);
  SmallRun slower(R"({"train_batch_size": 8, "steps_per_print": null,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.99]}}})");
  slower.engine.load_checkpoint(folder.path(), "configured");
  EXPECT_EQ(rate_and_betas(slower.engine).front(), 0.01);

  // Checkpoints of before have no such numbers.
  CheckpointContents contents = read_checkpoint(folder.path(), "set");
  contents.state["groups"].as_array()[0].erase("numbers");
  write_checkpoint(folder.path(), "older", contents);
  SmallRun older(config);
  older.engine.load_checkpoint(folder.path(), "older");
  EXPECT_EQ(rate_and_betas(older.engine), configured);
}

TEST(SavedRun, MayBeRefusedForItsClientStateBeforeAnythingChanges) {
  const test::TemporaryFolder folder;
  SmallRun run(kConfig), fresh(kConfig);
  run.steps(2);
  run.engine.save_checkpoint(folder.path(), "tag", Json::parse(R"({"place": 7})"));
  const auto check = [](const Json& client_state) {
    throw RuntimeFault("client_state.place: is " + client_state.find("place")->dump() + ", which is no use.");
  };
  EXPECT_THAT([&] { fresh.engine.load_checkpoint(folder.path(), "tag", check); },
              ThrowsMessage<RuntimeFault>(HasSubstr("tag/state.json: client_state.place: is 7, which is no use.")));
  EXPECT_EQ(fresh.engine.progress().global_steps, 0);
}

TEST(SavedRun, KeepsTheStepUnderWayWhereItIsRefused) {
  const test::TemporaryFolder folder;
  const std::string config = R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_print": null,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}})";
  SmallRun run(config), straight(config);
  Batch batch = testing_support::batch_number(run.next_batch++, run.rows);
  run.engine.backward(run.engine.forward(batch));
  run.engine.step();
  EXPECT_THAT([&] { run.engine.load_checkpoint(folder.path(), "nothing"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("nothing")));
  run.step();  // its second half
  straight.step();
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(straight.model.parameters[0].tensor));
}

TEST(SavedRun, LeavesTheOptimizerAsItWasWhereItRefusesItsState) {
  const test::TemporaryFolder folder;
  const std::string config = R"({"train_batch_size": 8, "steps_per_print": null,
      "optimizer": {"type": "ZeroOneAdam", "params": {"lr": 0.05, "var_freeze_step": 4, "local_step_scaler": 4}}})";
  SmallRun run(config), straight(config);
  run.steps(3);
  straight.steps(3);
  run.engine.save_checkpoint(folder.path(), "good");
  CheckpointContents contents = read_checkpoint(folder.path(), "good");
  contents.state["optimizer"]["state"] = R"({"updates": 77})";
  write_checkpoint(folder.path(), "bad", contents);
  EXPECT_THAT([&] { run.engine.load_checkpoint(folder.path(), "bad"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("bad/state.json: optimizer 'ZeroOneAdam', load: ")));
  run.steps(5);
  straight.steps(5);
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(straight.model.parameters[0].tensor));
}

}  // namespace
}  // namespace capstan
