// Parameters whose values are compressed on their way to the compute copies, at every stage.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLargest = 200'000;  // "large" has up to 240,000 elements: parts on four ranks
const std::vector<ModuleRecord> kModules = {{"", "Mixed"}, {"pair", "Pair"}};

/// Two groups that cross blocks and parts, one a row, and several that no block fits.
const std::string kGrid =
    R"({"type": "test_grid", "params": {"mean_share": 0.02, "groups": {"large": 4, "twice": 0, "transposed": 13,
        "pair.b": 1, "sometimes": 1, "unused": 5}}})";

void find_test_plugins() { setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/compression_plugins", 1); }

std::string config_of(int ranks, const std::string& zero, const std::string& compressions, const std::string& more = "",
                      const std::string& capstan = "") {
  find_test_plugins();
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}, "zero_optimization": )" +
         zero + R"(, "capstan": {"compressions": [)" + compressions + "]" + capstan + "}" + more + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// Ranks gather together, so all use what comes and goes.
class CompressedRun : public MixedRun {
 public:
  CompressedRun(const std::string& config, std::shared_ptr<Communicator> ranks)
      : MixedRun(config, std::move(ranks), /*seed=*/1, kLargest, kModules) {
    model.skips = false;
  }
};

/// Every rank's masters of a checkpoint, whole.
std::map<std::string, at::Tensor> masters_of(const std::string& folder) {
  std::map<std::string, at::Tensor> whole;
  for (const CheckpointTensor& part : read_checkpoint(folder, latest_tag(folder)).tensors) {
    if (part.state != "param") continue;
    at::Tensor& to = whole[part.parameter];
    if (!to.defined()) to = at::zeros({c10::multiply_integers(part.shape)}, part.values.options());
    to.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return whole;
}

at::Tensor of_name(const CompressedRun& run, const std::string& name) {
  for (const NamedTensor& parameter : run.model.parameters) {
    if (parameter.name == name) return parameter.tensor.detach();
  }
  return {};
}

/// What the test's compression makes of a tensor, by LibTorch's own operators; without the mean's share.
at::Tensor on_grid(const at::Tensor& masters, std::int64_t groups, double share) {
  const at::Tensor rows = masters.reshape({groups, -1});
  const at::Tensor step = (rows.abs().amax({1}, /*keepdim=*/true).to(at::kDouble) * share).to(at::kFloat);
  return (at::round(rows / step) * step).reshape({-1});
}

TEST(CompressedWeights, AreWhatTheFormulaMakesOfTheMasters) {
  const test::TemporaryFolder folder;
  CompressedRun run(
      config_of(1, R"({"stage": 0})",
                R"({"type": "test_grid", "params": {"groups": {"large": 4, "twice": 0, "transposed": 13}}})"),
      Communicator::alone());
  const auto expect_formula = [&](const char* when) {
    run.engine.save_checkpoint(folder.path().string());
    const auto masters = masters_of(folder.path().string());
    EXPECT_TRUE(at::equal(of_name(run, "large").reshape({-1}), on_grid(masters.at("large"), 4, 0.125))) << when;
    EXPECT_TRUE(at::equal(of_name(run, "twice").reshape({-1}), on_grid(masters.at("twice"), 3, 0.125))) << when;
    EXPECT_TRUE(at::equal(of_name(run, "transposed").reshape({-1}), on_grid(masters.at("transposed"), 13, 0.125)))
        << when;
    EXPECT_FALSE(at::equal(of_name(run, "large").reshape({-1}), masters.at("large")));
    EXPECT_TRUE(at::equal(of_name(run, "sometimes"), masters.at("sometimes")));
  };
  expect_formula("before the first update");
  run.steps(3);
  expect_formula("after three");
}

TEST(CompressedWeights, GetTheirGradientsAsTheyAre) {
  // Where the grid is so fine that it changes next to nothing, training is that of the plain run.
  CompressedRun plain(config_of(1, R"({"stage": 0})", ""), Communicator::alone());
  CompressedRun fine(
      config_of(1, R"({"stage": 0})", R"({"type": "test_grid", "params": {"share": 1e-7, "groups": {"large": 4}}})"),
      Communicator::alone());
  const auto expected = plain.steps(4), found = fine.steps(4);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5);
}

class CompressedStages : public testing::TestWithParam<int> {};

TEST_P(CompressedStages, GiveTheSameBits) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string two = kGrid + R"(, {"type": "test_grid", "params": {"share": 0.2, "from": 2,
        "groups": {"large": 20, "sometimes": 1}}})";
    for (const std::string& compressions : {kGrid, two}) {
      for (const char* more : {"", R"(, "bf16": {"enabled": true})"}) {
        CompressedRun reference(config_of(communicator.size(), R"({"stage": 0})", compressions, more),
                                shared(communicator));
        const auto losses = reference.steps(4);
        const at::Tensor expected = reference.values();
        for (const char* zero :
             {R"({"stage": 1})", R"({"stage": 1, "reduce_bucket_size": 3000, "overlap_comm": true})",
              R"({"stage": 2, "reduce_bucket_size": 70000})", R"({"stage": 3})",
              R"({"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 70000})"}) {
          CompressedRun run(config_of(communicator.size(), zero, compressions, more), shared(communicator));
          EXPECT_EQ(run.steps(4), losses) << zero << more;
          EXPECT_TRUE(at::equal(run.values(), expected)) << zero << more;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CompressedStages, testing::Values(2, 4));

TEST(CompressedWeights, AreWholeOnEveryRankWhereTheOptimizerCannotHaveParts) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const auto losses = [&](const char* zero) {
      std::string config = config_of(communicator.size(), zero, kGrid, R"(, "gradient_clipping": 0)");
      config.replace(config.find(R"("AdamW")"), 7, R"("ZeroOneAdam")");
      return CompressedRun(config, shared(communicator)).steps(3);
    };
    EXPECT_EQ(losses(R"({"stage": 1})"), losses(R"({"stage": 0})"));
  });
}

TEST(CompressedWeights, BeginAtTheirUpdate) {
  CompressedRun plain(config_of(1, R"({"stage": 0})", ""), Communicator::alone());
  CompressedRun late(
      config_of(1, R"({"stage": 0})", R"({"type": "test_grid", "params": {"from": 2, "groups": {"large": 4}}})"),
      Communicator::alone());
  EXPECT_TRUE(at::equal(late.values(), plain.values()));
  EXPECT_EQ(late.step(), plain.step());
  EXPECT_TRUE(at::equal(late.values(), plain.values()));
  late.step();
  plain.step();
  EXPECT_FALSE(at::equal(late.values(), plain.values()));
}

TEST(CompressedWeights, AreSavedAsMastersAndGoOnAtAnotherStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    if (communicator.rank() == 0) folder.emplace();
    const std::string dir = communicator.all_gather_text("test: folder", folder ? folder->path().string() : "")[0];
    CompressedRun straight(config_of(2, R"({"stage": 3})", kGrid), shared(communicator));
    straight.steps(3);
    straight.engine.save_checkpoint(dir);
    const auto losses = straight.steps(3);
    for (const char* zero : {R"({"stage": 0})", R"({"stage": 1})", R"({"stage": 3})"}) {
      CompressedRun run(config_of(2, zero, kGrid), shared(communicator));
      run.steps(1);
      run.engine.load_checkpoint(dir);
      EXPECT_EQ(run.steps(3), losses) << zero;
      EXPECT_TRUE(at::equal(run.values(), straight.values())) << zero;
    }
    if (communicator.rank() == 0) {
      const std::string alone = config_of(1, R"({"stage": 0})", kGrid);
      CompressedRun run(alone, Communicator::alone());
      run.engine.load_checkpoint(dir);
      const auto found = run.steps(3);
      for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(found[i], losses[i], 1e-5);
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

TEST(CompressedWeights, StayInMemoryWhereTheRestIsOffloaded) {
  const std::string store = R"(, "offload": {"optimizer": {"type": "cpu"}, "parameters": {"type": "cpu"}})";
  for (const char* more : {"", R"(, "bf16": {"enabled": true})"}) {
    CompressedRun memory(config_of(1, R"({"stage": 3})", kGrid, more), Communicator::alone());
    CompressedRun away(config_of(1, R"({"stage": 3, "sub_group_size": 40000})", kGrid, more, store),
                       Communicator::alone());
    EXPECT_EQ(away.steps(4), memory.steps(4)) << more;
    EXPECT_TRUE(at::equal(away.values(), memory.values())) << more;
  }
}

TEST(CompressedWeights, ThatAreWrittenByAProgramAreCompressedAnewAndOthersKeepTheirMasters) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    if (communicator.rank() == 0) folder.emplace();
    const std::string dir = communicator.all_gather_text("test: folder", folder ? folder->path().string() : "")[0];
    for (const char* zero : {R"({"stage": 0})", R"({"stage": 2})",
                             R"({"stage": 3, "stage3_param_persistence_threshold": 0})", R"({"stage": 3})"}) {
      const std::string grid = R"({"type": "test_grid", "params": {"groups": {"large": 4, "twice": 0}}})";
      CompressedRun run(config_of(2, zero, grid), shared(communicator));
      run.steps(2);
      run.engine.save_checkpoint(dir, "before");
      const auto before = masters_of(dir);
      { const GatherScope held = run.engine.gather({"large", "twice"}, /*written_by=*/0); }
      run.engine.save_checkpoint(dir, "read");
      const auto read = masters_of(dir);
      for (const auto& [name, values] : before) EXPECT_TRUE(at::equal(read.at(name), values)) << zero << name;
      {
        const GatherScope held = run.engine.gather({"large"}, /*written_by=*/0);
        const at::NoGradGuard no_grad;
        if (communicator.rank() == 0) of_name(run, "large")[0][0] = 7.5f;
      }
      run.engine.save_checkpoint(dir, "written");
      auto written = masters_of(dir);
      EXPECT_EQ(written.at("large")[0].item<float>(), 7.5f) << zero;
      {
        const GatherScope held = run.engine.gather({"large"});
        EXPECT_TRUE(at::equal(of_name(run, "large").reshape({-1}), on_grid(written.at("large"), 4, 0.125))) << zero;
      }
      written.at("large")[0] = before.at("large")[0];
      EXPECT_TRUE(at::equal(written.at("large"), before.at("large"))) << zero;
      run.step();
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

struct BadPlan {
  const char *answer, *says;
};

TEST(CompressionPlan, ThatContradictsTheModelOrItselfIsRefusedWithItsReason) {
  for (const BadPlan& bad : {
           BadPlan{"nonsense", "compression 'test_grid', plan: answered what is no JSON"},
           BadPlan{R"({\"parameters\": [{\"name\": \"larg\"}]})", "plan: 'larg' is no parameter of the model."},
           BadPlan{R"({\"parameters\": [{\"name\": \"frozen\"}]})", "parameter 'frozen' is not trained"},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\", \"groups\": 2}]})",
                   "parameter 'unused' has 5 elements, which are not 2 groups of one size"},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\", \"groups\": 0}]})", "'groups' must be 1 to 5, got 0"},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\"}, {\"name\": \"unused\"}]})", "is named twice"},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\", \"measures\": [[\"mean\"]]}]})",
                   "joined by max, min or sum, not by \"mean\""},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\", \"bits\": 9}]})", "'bits' must be 1 to 8, got 9"},
           BadPlan{R"({\"parameters\": [{\"name\": \"unused\", \"bits\": 4}]})", "it needs the function 'encode'"},
           BadPlan{R"({\"operands\": [\"attic\"]})", "operand 'attic' is no module of the model"},
           BadPlan{R"({\"named_by\": [\"pair\"]})", "'named_by' must be an object of texts"},
           BadPlan{R"({\"named_by\": {\"pair\": 7}})", "'named_by' must be an object of texts"},
           BadPlan{R"({\"operands\": [\"pair\"]})", "it needs the function 'operand'"},
       }) {
    const std::string entry =
        R"({"type": "test_grid", "params": {"groups": {}, "answer": ")" + std::string(bad.answer) + R"("}})";
    EXPECT_THAT([&] { CompressedRun(config_of(1, R"({"stage": 0})", entry), Communicator::alone()); },
                ThrowsMessage<PluginError>(HasSubstr(bad.says)))
        << bad.answer;
  }
}

}  // namespace
}  // namespace capstan
