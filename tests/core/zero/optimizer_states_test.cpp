// States of other kinds than a float an element, and sums over the whole model, at every stage.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/checkpoint/checkpoint.hpp"
#include "core/engine/planned_run.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/damage.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

std::string config_of(int ranks, const std::string& type, const std::string& zero, const std::string& params = "") {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": ")" + type + R"(", "params": {)" + params +
         R"(}}, "zero_optimization": )" + zero + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

constexpr std::int64_t kLargest = 100;     // the model's largest parameter has 40,100 elements, in two parts
constexpr std::int64_t kHalved = 100'000;  // so large that each of two ranks has a part of the parameter

void find_test_plugins() { setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1); }

/// Every parameter and state of a checkpoint, whole: "large, peak" -> its values.
std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> whole;
  for (const CheckpointTensor& part : read_checkpoint(folder, latest_tag(folder)).tensors) {
    if (part.state.find("generator") != std::string::npos) continue;  // each rank has one
    at::Tensor& to = whole[part.parameter + ", " + part.state];
    if (!to.defined()) to = at::zeros({c10::multiply_integers(part.shape)}, part.values.options());
    to.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return whole;
}

void expect_same(const std::map<std::string, at::Tensor>& found, const std::map<std::string, at::Tensor>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << what << ": " << name;
    EXPECT_EQ(found.at(name).scalar_type(), values.scalar_type()) << what << ": " << name;
    EXPECT_TRUE(at::equal(found.at(name), values)) << what << ": " << name;
  }
}

const char* const kZeros[] = {
    R"({"stage": 0})", R"({"stage": 1})", R"({"stage": 1, "reduce_bucket_size": 3000, "sub_group_size": 500})",
    R"({"stage": 2, "overlap_comm": true})", R"({"stage": 3, "stage3_param_persistence_threshold": 0})"};

/// What a run of some steps leaves in a checkpoint.
std::map<std::string, at::Tensor> saved(Communicator& communicator, const std::string& config, int steps) {
  const std::string folder = communicator.all_gather_text(
      "folder", (std::filesystem::temp_directory_path() / ("states" + std::to_string(getpid()))).string())[0];
  MixedRun run(config, shared(communicator), 1, kLargest);
  run.model.skips = false;
  run.steps(steps);
  run.engine.save_checkpoint(folder);
  const auto tensors = tensors_of(folder);
  communicator.all_gather_text("read", "");
  if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  communicator.all_gather_text("removed", "");
  return tensors;
}

TEST(OptimizerStates, HaveAValueAnElementOrABlockAndNothingWhereTheyAreNotWanted) {
  find_test_plugins();
  const test::TemporaryFolder folder;
  MixedRun run(config_of(1, "StateKinds", R"({"stage": 0})"), Communicator::alone(), 1, kLargest);
  run.model.skips = false;
  std::map<std::string, at::Tensor> start;
  for (const NamedTensor& parameter : run.model.parameters) {
    start[parameter.name] = parameter.tensor.detach().clone().reshape({-1});
  }
  run.steps(3);
  run.engine.save_checkpoint(folder.path());
  const auto tensors = tensors_of(folder.path());
  for (const NamedTensor& parameter : run.model.parameters) {
    const std::string& name = parameter.name;
    if (name == "frozen") continue;
    const std::int64_t numel = parameter.tensor.numel();
    const auto values = [&](const char* state) {
      const auto found = tensors.find(name + ", " + state);
      return found == tensors.end() ? -1 : found->second.numel();
    };
    EXPECT_EQ(values("code"), numel) << name;
    EXPECT_EQ(tensors.at(name + ", code").scalar_type(), at::kByte) << name;
    EXPECT_EQ(tensors.at(name + ", signed_code").scalar_type(), at::kChar) << name;
    EXPECT_EQ(values("peak"), (numel + 63) / 64) << name;
    EXPECT_TRUE(at::equal(tensors.at(name + ", start"), start.at(name))) << name;
    EXPECT_EQ(values("of_matrices"), parameter.tensor.dim() == 2 ? numel : -1) << name;
    EXPECT_EQ(values("of_matrix_role"), parameter.tensor.dim() >= 2 ? numel : -1) << name;
    EXPECT_EQ(values("of_named"), name.starts_with("more") ? numel : -1) << name;
    EXPECT_EQ(values("of_small"), numel <= 100 ? numel : -1) << name;
    EXPECT_EQ(values("of_large"), numel > 100 ? (numel + 32767) / 32768 : -1) << name;
    // Three updates, or none where there never is a gradient.
    const bool trained = name != "unused" && numel > 0;
    if (numel > 0) {
      EXPECT_EQ(tensors.at(name + ", code")[0].item<int>(), trained ? 203 : 200) << name;
      const int role = parameter.tensor.dim() >= 2 ? CAPSTAN_PARAM_MATRIX : CAPSTAN_PARAM_OTHER;
      EXPECT_EQ(tensors.at(name + ", role").item<float>(), trained ? role : 0) << name;
      EXPECT_EQ(tensors.at(name + ", signed_code")[numel - 1].item<int>(), trained ? -8 : -5) << name;
    }
  }
}

TEST(OptimizerStates, AreTheSameAtEveryStageAndInSubGroups) {
  find_test_plugins();
  for (const int ranks : {2, 3}) {
    test::expect_on_ranks(ranks, [](Communicator& communicator) {
      const auto expected = saved(communicator, config_of(communicator.size(), "StateKinds", kZeros[0]), 3);
      EXPECT_GT(expected.at("large, peak").numel(), 32768 / 64);  // more than one part can hold
      for (const char* zero : kZeros) {
        expect_same(saved(communicator, config_of(communicator.size(), "StateKinds", zero), 3), expected, zero);
      }
    });
  }
}

TEST(WholeGradients, TrainAtStage3AsAtStage0) {
  find_test_plugins();
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const auto expected = saved(communicator, config_of(2, "WholeGradients", kZeros[0]), 3);
    expect_same(saved(communicator, config_of(2, "WholeGradients", kZeros[4]), 3), expected, kZeros[4]);
  });
}

TEST(OptimizerStates, GoOnInAnotherNumberOfProcesses) {
  find_test_plugins();
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("reshape" + std::to_string(getpid()))).string())[0];
    MixedRun two(config_of(2, "StateKinds", kZeros[4]), shared(communicator), 1, kLargest);
    two.model.skips = false;
    two.steps(2);
    two.engine.save_checkpoint(folder);
    const auto before = tensors_of(folder);
    communicator.all_gather_text("read", "");
    if (communicator.rank() == 0) {
      MixedRun one(config_of(1, "StateKinds", kZeros[0]), Communicator::alone(), 1, kLargest);
      one.engine.load_checkpoint(folder);
      one.engine.save_checkpoint(folder, "one");
    }
    communicator.all_gather_text("saved", "");
    expect_same(tensors_of(folder), before, "loaded by one process");
    MixedRun again(config_of(2, "StateKinds", kZeros[1]), shared(communicator), 1, kLargest);
    again.model.skips = two.model.skips = false;
    again.engine.load_checkpoint(folder);
    EXPECT_EQ(again.steps(2), two.steps(2));
    EXPECT_TRUE(at::equal(again.values(), two.values()));
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

/// A rank verifies what it takes, and no more, also where its part of a state is counted in blocks.
TEST(OptimizerStates, ThatAreDamagedAreRefused) {
  find_test_plugins();
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("damage" + std::to_string(getpid()))).string())[0];
    MixedRun run(config_of(2, "StateKinds", kZeros[1]), shared(communicator), 1, kHalved);
    run.step();
    const std::string begin = communicator.rank() == 0 ? "rank 1: checkpoint file '" : "checkpoint file '";
    for (const std::string state : {"code", "peak"}) {
      run.engine.save_checkpoint(folder, state);
      if (communicator.rank() == 0) test::damage(folder + "/" + state, 1, "large", state);
      communicator.all_gather_text("damaged", "");
      EXPECT_THAT(
          [&] { run.engine.load_checkpoint(folder, state); },
          ThrowsMessage<RuntimeFault>(AllOf(StartsWith(begin), HasSubstr("of 'large' is damaged: it does not match"))))
          << state;
    }
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST(OptimizerStates, StartAsTheParametersThatTheFirstUpdateFinds) {
  find_test_plugins();
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("start" + std::to_string(getpid()))).string())[0];
    for (const char* zero : kZeros) {
      MixedRun run(config_of(2, "StateKinds", zero, R"("lr": 10)"), shared(communicator), 1, kLargest);
      run.model.skips = false;
      {
        const at::NoGradGuard no_grad;
        const GatherScope held = run.engine.gather({"large"}, 0);
        for (const NamedTensor& parameter : run.model.parameters) {
          if (parameter.name == "large") at::Tensor(parameter.tensor).fill_(3);
        }
      }
      run.steps(2);
      run.engine.save_checkpoint(folder);
      const auto tensors = tensors_of(folder);
      EXPECT_TRUE(tensors.at("large, start").eq(3).all().item<bool>()) << zero;
      EXPECT_FALSE(tensors.at("large, param").eq(3).all().item<bool>()) << zero;
      communicator.all_gather_text("read", "");
    }
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

/// The states' bytes in a checkpoint of one process are those in memory.
TEST(OptimizerStates, AreCountedByThePlan) {
  find_test_plugins();
  const test::TemporaryFolder folder;
  MixedRun run(config_of(1, "StateKinds", R"({"stage": 0})"), Communicator::alone(), 1, kLargest);
  const PlannedRun planned = planned_run(Model(
                                             &test::MixedModel::table(), &run.model, [](void*) {}, "mixed"),
                                         run.engine.config(), run.plugins, 1);
  std::int64_t expected = 0;
  run.engine.save_checkpoint(folder.path());
  for (const auto& [name, values] : tensors_of(folder.path())) {
    if (name.ends_with(", param")) continue;
    expected += static_cast<std::int64_t>(values.nbytes());
  }
  std::int64_t found = 0;
  for (const PlannedBytes& item : plan_memory(planned, {0}).items) {
    if (item.what == "optimizer state") found += item.bytes;
  }
  EXPECT_EQ(found, expected);
}

TEST(OptimizerStates, ThatAreNotThereAreNamed) {
  find_test_plugins();
  const auto first_step = [](const std::string& params) {
    MixedRun run(config_of(1, "StateKinds", R"({"stage": 0})", params), Communicator::alone(), 1, kLargest);
    run.step();
  };
  EXPECT_THAT([&] { first_step(R"("out_of_bounds": true)"); },
              ThrowsMessage<PluginError>(
                  HasSubstr("parameter 'twice': has no state 10: the manifest of StateKinds declares 10 for a slot, "
                            "numbered from 0.")));
  EXPECT_THAT([&] { first_step(R"("not_there": true)"); },
              ThrowsMessage<PluginError>(
                  HasSubstr("parameter 'scalar': has no state 4: the manifest of StateKinds leaves it out here. Ask "
                            "has_state(4) first.")));
  EXPECT_THAT(
      [&] { first_step(R"("named": ["more", "x["])"); },
      ThrowsMessage<ConfigError>(HasSubstr(": optimizer.params.named[1]: \"x[\" is not a regular expression.")));
}

TEST(OptimizerStates, OfWholeNumbersAreNotMadeOfOthers) {
  find_test_plugins();
  const test::TemporaryFolder folder;
  MixedRun run(config_of(1, "StateKinds", R"({"stage": 0})"), Communicator::alone(), 1, kLargest);
  run.engine.save_checkpoint(folder.path(), "codes");
  CheckpointContents contents = read_checkpoint(folder.path(), "codes");
  for (CheckpointTensor& tensor : contents.tensors) {
    if (tensor.state == "code") tensor.values = tensor.values.to(at::kFloat);
  }
  write_checkpoint(folder.path(), "floats", contents);
  EXPECT_THAT(
      [&] { run.engine.load_checkpoint(folder.path(), "floats"); },
      ThrowsMessage<RuntimeFault>(HasSubstr(
          "/floats: 'twice', state 'code' is of Float, this optimizer keeps it as Byte. It was saved by another "
          "version of the optimizer's plugin: resume with that one, or start from the weights alone with "
          "--init-from.")));
}

TEST(ModelMeasures, AreTheSameOnAllRanksAndAtEveryStage) {
  find_test_plugins();
  for (const int ranks : {2, 3}) {
    test::expect_on_ranks(ranks, [](Communicator& communicator) {
      const auto expected = saved(communicator, config_of(communicator.size(), "ModelMeasures", kZeros[0]), 3);
      for (const char* zero : kZeros) {
        expect_same(saved(communicator, config_of(communicator.size(), "ModelMeasures", zero), 3), expected, zero);
      }
    });
  }
}

/// Steps of a length of 0.01, whatever the gradient; the number of elements that have one.
TEST(ModelMeasures, AreSumsOverAllParameters) {
  find_test_plugins();
  for (const char* sub_groups : {R"({"stage": 0})", R"({"stage": 0, "sub_group_size": 1})"}) {
    const test::TemporaryFolder folder;
    MixedRun run(config_of(1, "ModelMeasures", sub_groups), Communicator::alone(), 1, kLargest);
    run.model.skips = false;
    const at::Tensor before = run.values();
    run.step();
    EXPECT_NEAR((run.values() - before).norm().item<double>(), 0.01, 1e-6) << sub_groups;
    std::int64_t elements = 0;
    for (const NamedTensor& parameter : run.model.parameters) {
      if (parameter.name != "frozen" && parameter.name != "unused") elements += parameter.tensor.numel();
    }
    run.engine.save_checkpoint(folder.path());
    EXPECT_EQ(tensors_of(folder.path()).at("large, total").item<float>(), static_cast<float>(elements)) << sub_groups;
  }
}

TEST(ModelMeasures, ThatAreNotFiniteOrMissingNameThePlugin) {
  find_test_plugins();
  const auto first_step = [](const std::string& type, const std::string& params) {
    MixedRun run(config_of(1, type, R"({"stage": 0})", params), Communicator::alone(), 1, kLargest);
    run.step();
  };
  EXPECT_THAT(
      [&] { first_step("ModelMeasures", R"("spoilt": true)"); },
      ThrowsMessage<PluginError>("optimizer 'ModelMeasures' (" CAPSTAN_TEST_BUILD_DIR
                                 "/tests/state_plugins/libcapstan_optimizer_test_states.so): measure 1 of the "
                                 "model is nan at update 0, though the gradients are finite; it must be finite. "
                                 "Lower the learning rate, or tell the plugin's author. The update was not "
                                 "made."));
  EXPECT_THAT([&] { first_step("Measures", ""); },
              ThrowsMessage<PluginError>(HasSubstr("measure 0 of parameter 'twice' is inf at update 0")));
  EXPECT_THAT([&] { first_step("NoFunction", ""); },
              ThrowsMessage<PluginError>(
                  HasSubstr("its manifest says measures_model = 1, and the plugin has no function measure_model. Write "
                            "it, or take the key out of plugin.toml.")));
}

}  // namespace
}  // namespace capstan
