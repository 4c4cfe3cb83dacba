#include "plugins/observers/progressive_layer_drop/progressive_layer_drop.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "capstan/sdk/model.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kWidth = 8;
constexpr int kLayers = 4;

struct Shape {
  bool wraps = true;  // whether it calls its layers through capstan::layer
  std::string describes = "{}";
};

/// Four residual layers and a head. A layer writes down that it ran, and the model what the batch tells.
struct Tower : torch::nn::Module {
  explicit Tower(Shape shape)
      : shape(std::move(shape)),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kWidth))) {
    for (int i = 0; i < kLayers; ++i) blocks->push_back(torch::nn::Linear(kWidth, kWidth));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& one : parameters()) one.copy_((torch::arange(one.numel()).view(one.sizes()) * 1.3).sin() / 4);
  }

  at::Tensor forward(const sdk::BatchView& batch) {
    at::Tensor hidden = batch.tensor("x").to(head->weight.scalar_type());
    ran.emplace_back();
    thetas.push_back(batch.number("pld_theta").value_or(-1));
    switches.push_back(batch.number("progressive_layer_drop").value_or(0));
    for (std::size_t i = 0; i < kLayers; ++i) {
      const auto run = [&](const at::Tensor& input, const Arguments&) {
        ran.back().push_back(i);
        return input + blocks->at<torch::nn::LinearImpl>(i).forward(input).tanh();
      };
      hidden = shape.wraps ? layer("blocks." + std::to_string(i), hidden, {}, run) : run(hidden, {});
    }
    return head(hidden).to(torch::kFloat).square().mean();
  }
  std::string describe() const { return shape.describes; }

  Shape shape;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
  std::vector<std::vector<std::size_t>> ran;  // layers, pass by pass
  std::vector<double> thetas, switches;
};

std::string section(double theta = 0.5, double gamma = 0.5) {
  return "\"progressive_layer_drop\": {\"enabled\": true, \"theta\": " + std::to_string(theta) +
         ", \"gamma\": " + std::to_string(gamma) + "}";
}

/// A training run of a tower, with two samples a rank and micro-batch.
class DropRun {
 public:
  explicit DropRun(const std::string& members, std::shared_ptr<Communicator> ranks = Communicator::alone(),
                   Shape shape = {}, int accumulation = 1, std::uint64_t seed = 1234)
      : tower(std::make_shared<Tower>(shape)) {
    using Made = sdk::Instance<sdk::ModuleModel<Tower>>;
    auto* made = new Made{model_host(), sdk::ModuleModel<Tower>(tower, &sdk::default_step<Tower>)};
    Model model(
        &sdk::ModelThunks<Tower>::kVtable, made, [](void* self) { delete static_cast<Made*>(self); }, "tower");
    ConfigContext context;
    context.world_size = ranks->size();
    const Config config =
        load_config({R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
                         std::to_string(accumulation) + R"(, "steps_per_print": null, "gradient_clipping": 1.0,
                       "capstan": {"run": {"seed": )" +
                         std::to_string(seed) + R"(}},
                       "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})" +
                         (members.empty() ? "" : ", " + members) + "}",
                     "tower.json", false},
                    context, plugins_);
    engine = std::make_unique<Engine>(std::move(model), config, plugins_, ranks);
    next_ = ranks->rank();
  }

  double step() {
    return engine->train_batch([&] { return batch(); });
  }
  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }
  Batch batch() {
    Batch made;
    made.tensors = {{"x", (torch::arange(2 * kWidth).view({2, kWidth}) * 0.7 + next_).sin()}};
    next_ += engine->world_size();
    return made;
  }
  /// Every parameter, on every rank.
  at::Tensor weights() {
    std::vector<at::Tensor> flat;
    const auto held = engine->gather();
    for (const NamedTensor& one : engine->model().parameters()) flat.push_back(one.tensor.detach().flatten());
    return torch::cat(flat).clone();
  }

 private:
  PluginIndex plugins_;

 public:
  std::shared_ptr<Tower> tower;
  std::unique_ptr<Engine> engine;
  std::vector<double> losses;

 private:
  std::int64_t next_ = 0;
};

/// The probability of keeping the layer at `place` (from 0) by the paper's equation 4.
double keep(int place, double theta) { return 1 - (place + 1.0) / kLayers * (1 - theta); }

TEST(ProgressiveLayerDrop, KeepsLayersAsOftenAsTheFormulaSays) {
  constexpr int kDraws = 20000;
  const layer_drop::Keeps keeps = layer_drop::draws(1234);
  for (const double theta : {0.0, 0.3, 0.5, 0.9}) {
    for (int place = 0; place < kLayers; ++place) {
      const double wanted = keep(place, theta), sigma = std::sqrt(wanted * (1 - wanted) / kDraws);
      int kept = 0;
      for (int step = 0; step < kDraws / 2; ++step) {
        for (int micro_step = 0; micro_step < 2; ++micro_step) {
          kept += keeps({step, micro_step, static_cast<std::uint32_t>(place), wanted});
        }
      }
      EXPECT_NEAR(static_cast<double>(kept) / kDraws, wanted, 4 * sigma) << theta << ", layer " << place;
    }
  }
}

TEST(ProgressiveLayerDrop, DrawsEachLayerOnItsOwn) {
  const layer_drop::Keeps keeps = layer_drop::draws(7), others = layer_drop::draws(8);
  std::array<int, 4> together{};
  int same = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool first = keeps({step, 0, 0, 0.5}), second = keeps({step, 0, 1, 0.5});
    ++together[first * 2 + second];
    same += first == others({step, 0, 0, 0.5});
  }
  for (const int count : together) EXPECT_NEAR(count, 5000, 4 * 62);  // 4 sigma of 20,000 draws of 1/4
  EXPECT_NEAR(same, 10000, 4 * 71);
}

TEST(ProgressiveLayerDrop, TellsModelsThetaAndKeepsWhatItDraws) {
  DropRun run(section(0.2, 0.3), Communicator::alone(), {}, 2);
  run.steps(12);
  const layer_drop::Keeps keeps = layer_drop::draws(1234);
  std::size_t pass = 0, left_out = 0;
  for (int step = 0; step < 12; ++step) {
    const double theta = 0.8 * std::exp(-0.3 * std::max(step - 1, 0)) + 0.2;
    for (int micro_step = 0; micro_step < 2; ++micro_step, ++pass) {
      EXPECT_NEAR(run.tower->thetas[pass], theta, 1e-15) << step;
      EXPECT_EQ(run.tower->switches[pass], 1);
      std::vector<std::size_t> wanted;
      for (int place = 0; place < kLayers; ++place) {
        if (keeps({step, micro_step, static_cast<std::uint32_t>(place), keep(place, theta)})) wanted.push_back(place);
      }
      EXPECT_EQ(run.tower->ran[pass], wanted) << step << ", " << micro_step;
      left_out += kLayers - wanted.size();
    }
  }
  EXPECT_GT(left_out, 20u);
}

TEST(ProgressiveLayerDrop, DecaysAndMovesWhatItLeavesOut) {
  DropRun run(section(0, 100));
  for (int step = 0; step < 2; ++step) run.step();
  bool seen = false;
  for (int step = 2; step < 12; ++step) {
    const at::Tensor before = run.tower->blocks->at<torch::nn::LinearImpl>(kLayers - 1).weight.detach().clone();
    run.step();
    const at::Tensor after = run.tower->blocks->at<torch::nn::LinearImpl>(kLayers - 1).weight.detach();
    const auto& ran = run.tower->ran.back();
    if (std::find(ran.begin(), ran.end(), kLayers - 1) != ran.end()) continue;
    seen = true;
    // Decay alone would change each element by a 1,000th of it.
    EXPECT_GT((after - before * (1 - 0.01 * 0.1)).abs().min().item<double>(), 1e-6) << step;
  }
  EXPECT_TRUE(seen);
}

TEST(ProgressiveLayerDrop, LeavesOutTheSameLayersAtEveryStageAndRank) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> both(&communicator, [](Communicator*) {});
    const TemporaryFolder folder;
    const std::string store = communicator.all_gather_text("folder", folder.path().string())[0];
    const std::string stage_3 = R"("stage": 3, "stage3_param_persistence_threshold": 0)";
    const std::string on_nvme = R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" + store + "\"}";
    const auto run_of = [&](const std::string& zero, int accumulation) {
      auto run = std::make_unique<DropRun>(section(0.3, 0.2) + ", \"zero_optimization\": {" + zero + "}", both, Shape{},
                                           accumulation);
      run->losses = run->steps(20);
      return run;
    };
    const auto expect_same = [&](DropRun& one, DropRun& other, const std::string& what) {
      EXPECT_EQ(one.losses, other.losses) << what;
      EXPECT_TRUE(one.weights().equal(other.weights())) << what;
      EXPECT_EQ(one.tower->ran, other.tower->ran) << what;
    };
    const auto plain = run_of(R"("stage": 0)", 1);
    for (const std::string& zero : {std::string(R"("stage": 1)"), std::string(R"("stage": 2)"), stage_3}) {
      expect_same(*run_of(zero, 1), *plain, zero);
    }
    const auto adding = run_of(R"("stage": 2)", 2);  // which adds micro-batches up as stage 3 does
    for (const std::string& zero : {stage_3, stage_3 + on_nvme}) expect_same(*run_of(zero, 2), *adding, zero);
    communicator.all_gather_text("done", "");  // with the folder
    const std::string mine = ::testing::PrintToString(plain->tower->ran);
    for (const std::string& theirs : communicator.all_gather_text("ran", mine)) EXPECT_EQ(theirs, mine);
  });
}

/// A layer that runs in one micro-batch of a step and is left out in the last one has its gradient added up before the
/// ranks' sum at stages 0 and 1, after it at stages 2 and 3, whatever bucket it lies in.
TEST(ProgressiveLayerDrop, GivesTheSameBitsWithAccumulationWhateverTheBuckets) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> all(&communicator, [](Communicator*) {});
    for (const char* precision : {"", R"(, "bf16": {"enabled": true})"}) {
      const auto run_of = [&](const std::string& zero) {
        auto run = std::make_unique<DropRun>(section(0.3, 0.2) + precision + ", \"zero_optimization\": {" + zero + "}",
                                             all, Shape{}, 3);
        run->losses = run->steps(8);
        return run;
      };
      const auto before = run_of(R"("stage": 0)"), after = run_of(R"("stage": 2)");
      EXPECT_THAT(before->tower->ran, ::testing::Contains(::testing::SizeIs(::testing::Lt(std::size_t{kLayers}))));
      for (const char* zero : {R"("stage": 0, "overlap_comm": true, "reduce_bucket_size": 1)", R"("stage": 1)",
                               R"("stage": 1, "reduce_bucket_size": 1)", R"("stage": 1, "reduce_bucket_size": 100)",
                               R"("stage": 1, "reduce_bucket_size": 100, "overlap_comm": true)"}) {
        const auto run = run_of(zero);
        EXPECT_EQ(run->losses, before->losses) << zero << precision;
        EXPECT_TRUE(run->weights().equal(before->weights())) << zero << precision;
      }
      for (const char* zero :
           {R"("stage": 2, "reduce_bucket_size": 1)", R"("stage": 2, "reduce_bucket_size": 100, "overlap_comm": true)",
            R"("stage": 3)", R"("stage": 3, "reduce_bucket_size": 100, "stage3_param_persistence_threshold": 0)"}) {
        const auto run = run_of(zero);
        EXPECT_EQ(run->losses, after->losses) << zero << precision;
        EXPECT_TRUE(run->weights().equal(after->weights())) << zero << precision;
      }
    }
  });
}

TEST(ProgressiveLayerDrop, GoesOnWhereItWasSaved) {
  const TemporaryFolder folder;
  DropRun straight(section(0.2, 1)), resumed(section(0.2, 1));
  straight.steps(6);
  straight.engine->save_checkpoint(folder.path().string());
  resumed.engine->load_checkpoint(folder.path().string());
  for (int i = 0; i < 6; ++i) resumed.batch();
  EXPECT_EQ(resumed.steps(10), straight.steps(10));
  EXPECT_TRUE(resumed.weights().equal(straight.weights()));
}

TEST(ProgressiveLayerDrop, DrawsByTheRunsSeed) {
  DropRun one(section(0, 100)), same(section(0, 100)), other(section(0, 100), Communicator::alone(), {}, 1, 4321);
  const auto losses = one.steps(10);
  EXPECT_EQ(same.steps(10), losses);
  EXPECT_NE(other.steps(10), losses);
}

TEST(ProgressiveLayerDrop, LeavesEvaluationAndThetaOneAlone) {
  DropRun run(section(0, 100)), plain(""), whole(section(1, 0.1));
  EXPECT_EQ(whole.steps(5), plain.steps(5));
  EXPECT_TRUE(whole.weights().equal(plain.weights()));
  run.steps(5);
  for (int i = 0; i < 10; ++i) {
    run.engine->eval_batch([&] { return run.batch(); }, 1);
    EXPECT_EQ(run.tower->ran.back().size(), std::size_t{kLayers});
  }
}

TEST(ProgressiveLayerDrop, TellsMonitorsTheta) {
  const TemporaryFolder folder;
  DropRun run(section(0.5, 0.1) + R"(, "csv_monitor": {"enabled": true, "job_name": "run", "output_path": ")" +
              folder.path().string() + "\"}");
  run.steps(3);
  run.engine.reset();
  EXPECT_THAT(read_bytes(folder.path() / "run/Train_Samples_pld_theta.csv"), HasSubstr("2,1.0\r\n4,1.0\r\n6,0.95"));
}

TEST(ProgressiveLayerDrop, RefusesAModelWithoutLayers) {
  EXPECT_THAT([] { DropRun run(section(), Communicator::alone(), {.describes = R"({"layer_names": []})"}); },
              ThrowsMessage<ConfigError>(
                  HasSubstr("progressive_layer_drop: the model has no layers that could be left out: it neither lists "
                            "\"layer_names\" in its description nor numbers modules of one class from 0.")));
}

TEST(ProgressiveLayerDrop, RefusesAModelThatDoesNotCallItsLayersThroughCapstan) {
  DropRun run(section(), Communicator::alone(), {.wraps = false});
  EXPECT_THAT(
      [&] { run.step(); },
      ThrowsMessage<std::exception>(HasSubstr(
          "none of the model's layers ran through capstan::layer in the first step, so none can be left out.")));
}

TEST(ProgressiveLayerDrop, RefusesWhatIsNoProbability) {
  EXPECT_THAT([] { DropRun run(section(2)); },
              ThrowsMessage<std::exception>(HasSubstr("progressive_layer_drop.theta")));
  EXPECT_THAT([] { DropRun run(section(0.5, -1)); },
              ThrowsMessage<std::exception>(HasSubstr("progressive_layer_drop.gamma")));
}

/// ZeRO stage 3 brings parameters by collectives: ranks that left out different layers would wait for ever.
TEST(ProgressiveLayerDrop, TrainsAtStage3) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> both(&communicator, [](Communicator*) {});
    DropRun run(section(0.5, 1) + R"(, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                                     "stage3_prefetch_bucket_size": 100, "stage3_max_reuse_distance": 0})",
                both);
    const std::vector<double> losses = run.steps(2000);
    EXPECT_LT(losses.back(), losses.front());
  });
}

}  // namespace
}  // namespace capstan
