#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/layer.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/components/layer_chain.hpp"
#include "core/errors.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

/// A chain of the probes, and a model that calls one layer, hidden + sum of the mask.
class LayerCalls : public ::testing::Test {
 protected:
  void add(const std::string& type, const std::string& params = "{}") {
    Json given = Json::parse(params);
    if (type != "LayerDoubled" && given.find("replaces") == nullptr) given["replaces"] = "";
    components_.push_back(std::make_unique<Component>(registry_.create("test", "observer", type, given, model_host())));
    chain_.add(*components_.back());
  }

  float run(float hidden, const at::Tensor& mask) {
    batch_.layers = &chain_;
    const sdk::ForwardScope scope(model_host(), &batch_, &error_);
    const at::Tensor out =
        layer("blocks.1", torch::full({1}, hidden), {{"attention_mask", mask}},
              [](const at::Tensor& x, const Arguments& given) { return x + given.get("attention_mask").sum(); });
    return out.item<float>();
  }

  PluginIndex plugins_ = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins", "the test"}});
  Registry registry_{plugins_};
  std::vector<std::unique_ptr<Component>> components_;
  LayerChain chain_;
  Batch batch_;
  capstan_error error_;
};

TEST_F(LayerCalls, LieAroundEachOtherInTheOrderOfTheirManifests) {
  // Added from the inside to the outside: outer(older(inner)).
  add("LayerInner");
  add("LayerDoubled");
  add("LayerOuter");

  EXPECT_EQ(run(3, torch::ones({2})), 10 * 10 * (2 * (3 + 1) + 1 + 2));
}

TEST_F(LayerCalls, HandArgumentsOnThroughAnObserverThatKnowsNone) {
  add("LayerDoubled");
  EXPECT_EQ(run(3, torch::ones({2})), 2 * 3 + 2);
}

TEST_F(LayerCalls, HandOnTheArgumentThatAnOuterObserverHasReplaced) {
  add("LayerOuter", R"({"replaces": "attention_mask"})");
  add("LayerDoubled");

  EXPECT_EQ(run(3, torch::ones({2})), 10 * (2 * (3 + 1) + 0));
}

TEST_F(LayerCalls, RefuseToReplaceAnArgumentThatTheLayerDoesNotTake) {
  add("LayerOuter", R"({"replaces": "position_ids"})");

  EXPECT_THROW(run(3, torch::ones({2})), sdk::HostFailure);
  EXPECT_THAT(error_.text,
              HasSubstr("observer 'LayerOuter', layer 'blocks.1': layer 'blocks.1' has no argument 'position_ids'"));
}

std::string logged(Engine& engine) {
  const TemporaryFolder folder;
  const std::string tag = engine.save_checkpoint(folder.path().string());
  return read_bytes(folder.path() / tag / "state.json");
}

TEST(LayerLog, ShowsTheModelsLayersTheirPlacesAndTheRowsOfEachMicroBatch) {
  ProbeRun run(R"("observers": [{"type": "LayerLog"}])",
               R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2)",
               R"("layers": 2, "d": 32, "heads": 2, "seq": 16)");

  run.steps(2);

  EXPECT_THAT(logged(*run.engine), HasSubstr("blocks.0;blocks.1;"
                                             "blocks.0 0/2 step 0.0 rows 0 1;blocks.1 1/2 step 0.0 rows 0 1;"
                                             "blocks.0 0/2 step 0.1 rows 2 3;blocks.1 1/2 step 0.1 rows 2 3;"
                                             "blocks.0 0/2 step 1.0 rows 4 5;"));
}

TEST(Pacing, IsAskedOfTheComponentThatTheConfigurationNames) {
  ProbeRun run(
      R"("observers": [{"type": "LayerLog", "params": {"asks": "seqlen"}}], "data": {"pacing": {"type": "stairs"}})");

  run.steps(2);

  EXPECT_THAT(logged(*run.engine), HasSubstr(";8;blocks.0"));
  EXPECT_THAT(logged(*run.engine), HasSubstr(";16;blocks.0"));
}

TEST(Pacing, IsAskedOfTheProgramsFunctionFirst) {
  ProbeRun run(
      R"("observers": [{"type": "LayerLog", "params": {"asks": "seqlen"}}], "data": {"pacing": {"type": "Stairs"}})");
  run.engine->set_difficulty_schedule("seqlen", [](std::int64_t step) { return 100 + step; });

  run.steps(1);

  EXPECT_THAT(logged(*run.engine), HasSubstr(";101;blocks.0"));
}

TEST(Pacing, NamesBothWaysWhereNothingSaysTheDifficulty) {
  ProbeRun run(R"("observers": [{"type": "LayerLog", "params": {"asks": "rarity"}}])");

  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<std::exception>(HasSubstr(
                  "the schedule of 'rarity' is \"custom\", and nothing says its difficulty. Call "
                  "Engine::set_difficulty_schedule(\"rarity\", function), or name a component of kind \"pacing\" in "
                  "capstan.data.pacing.")));
}

TEST(Pacing, NamesTheComponentTheMetricAndTheStepOfAFailure) {
  ProbeRun run(
      R"("observers": [{"type": "LayerLog", "params": {"asks": "rarity"}}], "data": {"pacing": {"type": "Stairs"}})");

  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<std::exception>(HasSubstr("pacing 'Stairs', metric 'rarity', step 1: knows seqlen only")));
}

}  // namespace
}  // namespace capstan
