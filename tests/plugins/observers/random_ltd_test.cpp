#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

#include "capstan/sdk/model.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "plugins/observers/random_ltd/drawn_positions.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 12, kWidth = 16, kHeads = 2, kLayers = 4, kSeed = 7;
constexpr double kNever = -1e9;  // in a mask

struct Shape {
  bool encoder = false, takes_mask = false, sequence_first = false;
  std::string mask_name = "attention_mask";  // that the model gives its layers
  bool wraps = true;                         // whether it calls its layers through capstan::layer
  std::string describes = "{}";
};

at::Tensor causal() { return torch::full({1, 1, kTokens, kTokens}, kNever).triu(1); }

/// One transformer block; `mask` is added to the scores.
struct Block : torch::nn::Module {
  Block()
      : qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))) {}

  at::Tensor run(const at::Tensor& hidden, const at::Tensor& mask) {  // [samples, tokens, width]
    const auto parts = qkv(hidden)
                           .view({hidden.size(0), hidden.size(1), 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor scores = (parts[0].matmul(parts[1].transpose(2, 3)) + mask).softmax(-1);
    return hidden + out(scores.matmul(parts[2]).transpose(1, 2).reshape(hidden.sizes()).tanh());
  }

  torch::nn::Linear qkv, out;
};

/// Four blocks. A layer writes down the tokens that it gets, which position_ids names.
struct Tower : torch::nn::Module {
  explicit Tower(Shape shape) : shape(std::move(shape)), blocks(register_module("blocks", torch::nn::ModuleList())) {
    torch::manual_seed(3);
    for (int i = 0; i < kLayers; ++i) blocks->push_back(std::make_shared<Block>());
  }

  at::Tensor forward(const sdk::BatchView& batch) {
    if (std::exchange(fails, false)) throw std::runtime_error("this forward fails");
    at::Tensor hidden = batch.tensor("x");
    const bool first = shape.sequence_first;
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      Arguments arguments = {{"position_ids", torch::arange(kTokens).unsqueeze(0)}};
      if (shape.takes_mask) arguments.set(shape.mask_name, shape.encoder ? batch.tensor("mask") : causal());
      const auto run = [&](const at::Tensor& input, const Arguments& given) {
        seen.push_back(given.get("position_ids"));
        const at::Tensor mask =
            shape.takes_mask ? given.get(shape.mask_name)
                             : causal().narrow(2, 0, input.size(first ? 0 : 1)).narrow(3, 0, input.size(first ? 0 : 1));
        const at::Tensor out = blocks->at<Block>(i).run(first ? input.transpose(0, 1) : input, mask);
        return first ? out.transpose(0, 1) : out;
      };
      if (first) hidden = hidden.transpose(0, 1).contiguous();
      hidden = shape.wraps ? layer("blocks." + std::to_string(i), hidden, arguments, run) : run(hidden, arguments);
      if (first) hidden = hidden.transpose(0, 1).contiguous();
    }
    return loss(hidden);
  }
  static at::Tensor loss(const at::Tensor& hidden) { return (hidden * hidden.sin()).mean(); }
  std::string describe() const { return shape.describes; }

  Shape shape;
  torch::nn::ModuleList blocks;
  std::vector<at::Tensor> seen;  // position_ids, call by call
  bool fails = false;            // the next forward
};

std::string section(const std::string& changes = "", std::int64_t keep = 5, const std::string& type = "decoder",
                    const std::string& mask = "null", const std::string& order = "batch_seq_dim") {
  return R"("data_efficiency": {"enabled": true, "seed": 7, "data_routing": {"enabled": true, "random_ltd": {
    "enabled": true, "total_layer_num": 4, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 2], "model_mask_name": )" +
         mask + R"(, "model_type": ")" + type + R"(", "hidden_state_order": ")" + order +
         R"(", "random_ltd_schedule": {"min_value": )" + std::to_string(keep) +
         R"(, "max_value": 12, "schedule_type": "fixed_linear", "schedule_config": {"require_steps": 10, "seq_per_step": 1}})" +
         changes + "}}}";
}

/// A training run of a tower on samples that are a function of their place in the order of all samples.
class TowerRun {
 public:
  explicit TowerRun(const std::string& members, Shape shape = {}, std::int64_t batch = 4, std::int64_t micro = 4,
                    std::shared_ptr<Communicator> communicator = Communicator::alone())
      : tower(std::make_shared<Tower>(shape)), micro_(micro) {
    using Made = sdk::Instance<sdk::ModuleModel<Tower>>;
    auto* made = new Made{model_host(), sdk::ModuleModel<Tower>(tower, &sdk::default_step<Tower>)};
    Model model(
        &sdk::ModelThunks<Tower>::kVtable, made, [](void* self) { delete static_cast<Made*>(self); }, "tower");
    ConfigContext context;
    context.world_size = communicator->size();
    const Config config =
        load_config({R"({"train_batch_size": )" + std::to_string(batch) + R"(, "train_micro_batch_size_per_gpu": )" +
                         std::to_string(micro) + R"(, "steps_per_print": null, "gradient_clipping": 0,
                       "optimizer": {"type": "SGD", "params": {"lr": 1.0}})" +
                         (members.empty() ? "" : ", " + members) + "}",
                     "tower.json", false},
                    context, plugins_);
    engine = std::make_unique<Engine>(std::move(model), config, plugins_, communicator);
    next_ = communicator->rank() * micro;
  }

  static at::Tensor inputs(std::int64_t first, std::int64_t rows) {
    return (torch::arange(first * kTokens * kWidth, (first + rows) * kTokens * kWidth, at::kDouble) * 0.7)
        .sin()
        .to(at::kFloat)
        .view({rows, kTokens, kWidth});
  }
  /// Each sample's padding: of its last tokens some are seen by none.
  static at::Tensor mask(std::int64_t first, std::int64_t rows) {
    const at::Tensor out = torch::zeros({rows, 1, kTokens, kTokens});
    for (std::int64_t i = 0; i < rows; ++i) out[i].slice(2, kTokens - (first + i) % 4).fill_(kNever);
    return out;
  }

  Batch batch() {
    Batch made;
    made.tensors = {{"x", inputs(next_, micro_)}, {"mask", mask(next_, micro_)}};
    next_ += micro_ * engine->world_size();
    return made;
  }
  double step() {
    return engine->train_batch([&] { return batch(); });
  }
  /// The tokens that each wrapped layer got since the last call, a row for each sample.
  std::vector<at::Tensor> kept() {
    std::vector<at::Tensor> out;
    for (const std::size_t wrapped : {1, 2}) {
      std::vector<at::Tensor> rows;
      for (std::size_t i = wrapped; i < tower->seen.size(); i += kLayers) rows.push_back(tower->seen[i]);
      out.push_back(torch::cat(rows));
    }
    tower->seen.clear();
    return out;
  }
  at::Tensor weights() const {
    std::vector<at::Tensor> flat;
    for (const NamedTensor& one : engine->model().parameters()) flat.push_back(one.tensor.detach().flatten());
    return torch::cat(flat).clone();
  }
  /// The observer's state in a checkpoint below `folder`, which all ranks share.
  std::string saved(const std::filesystem::path& folder) const {
    const std::string tag = engine->save_checkpoint(folder.string());
    const Json state = Json::parse(read_bytes(folder / tag / "state.json"));
    return state.at("observers").at("random_ltd").as_string();
  }
  std::string saved() const {
    const TemporaryFolder folder;
    return saved(folder.path());
  }

 private:
  PluginIndex plugins_;

 public:
  std::shared_ptr<Tower> tower;
  std::unique_ptr<Engine> engine;

 private:
  std::int64_t micro_, next_;
};

/// The positions that the layer at place `layer` of the wrapped ones keeps in a step.
at::Tensor drawn(std::int64_t step, std::int64_t first, std::int64_t samples, std::uint32_t layer, std::int64_t keep) {
  return random_ltd::draw_positions(kSeed, {step, 0, torch::arange(first, first + samples), layer, kTokens, keep});
}

/// Random-LTD as a mask: the layer computes all tokens, of which those that are dropped are seen by none, and what it
/// makes of those is not taken.
struct Masked {
  double loss;
  at::Tensor gradient;
};
Masked masked(const Shape& shape, std::int64_t step, std::int64_t samples, std::int64_t keep) {
  Tower tower(shape);
  const std::int64_t first = step * samples;
  at::Tensor hidden = TowerRun::inputs(first, samples);
  const at::Tensor base = shape.encoder ? TowerRun::mask(first, samples) : causal();
  for (std::size_t i = 0; i < kLayers; ++i) {
    Block& block = tower.blocks->at<Block>(i);
    if (i != 1 && i != 2) {
      hidden = block.run(hidden, base);
      continue;
    }
    const at::Tensor positions = drawn(step, first, samples, static_cast<std::uint32_t>(i - 1), keep);
    const at::Tensor is_kept = torch::zeros({samples, kTokens}, at::kBool).scatter(1, positions, true);
    const at::Tensor unseen =
        torch::zeros({samples, 1, 1, kTokens}).masked_fill(~is_kept.view({samples, 1, 1, kTokens}), kNever);
    hidden = torch::where(is_kept.unsqueeze(2), block.run(hidden, base + unseen), hidden);
  }
  const at::Tensor loss = Tower::loss(hidden);
  loss.backward();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& one : tower.parameters()) flat.push_back(one.grad().flatten());
  return {loss.item<double>(), torch::cat(flat)};
}

struct Kind {
  const char* name;
  Shape shape;
  const char *type, *mask, *order;
};
class RandomLtdKinds : public ::testing::TestWithParam<Kind> {};

TEST_P(RandomLtdKinds, TrainAsAMaskedModelDoes) {
  const Kind& kind = GetParam();
  TowerRun run(section("", 5, kind.type, kind.mask, kind.order), kind.shape);
  const at::Tensor before = run.weights();
  const double loss = run.step();
  const Masked wanted = masked(kind.shape, 0, 4, 5);
  EXPECT_NEAR(loss, wanted.loss, 1e-6);
  EXPECT_LT((before - run.weights() - wanted.gradient).abs().max().item<double>(), 1e-6);
  EXPECT_GT(wanted.gradient.abs().max().item<double>(), 1e-2);
  const std::vector<at::Tensor> kept = run.kept();
  for (const std::uint32_t layer : {0u, 1u}) EXPECT_TRUE(kept[layer].equal(drawn(0, 0, 4, layer, 5)));
  EXPECT_FALSE(kept[0].equal(kept[1]));
  EXPECT_FALSE(kept[0][0].equal(kept[0][1]));
}

INSTANTIATE_TEST_SUITE_P(
    All, RandomLtdKinds,
    ::testing::Values(
        Kind{"Decoder", {}, "decoder", "null", "batch_seq_dim"},
        Kind{"DecoderWithMask", {.takes_mask = true}, "decoder", R"("attention_mask")", "batch_seq_dim"},
        Kind{"Encoder", {.encoder = true, .takes_mask = true}, "encoder", R"("attention_mask")", "batch_seq_dim"},
        Kind{"EncoderOfAnotherName",
             {.encoder = true, .takes_mask = true, .mask_name = "bias"},
             "encoder",
             R"("bias")",
             "batch_seq_dim"},
        Kind{"DecoderBySequence", {.sequence_first = true}, "decoder", "null", "seq_batch_dim"},
        Kind{"EncoderBySequence",
             {.encoder = true, .takes_mask = true, .sequence_first = true},
             "encoder",
             R"("attention_mask")",
             "seq_batch_dim"}),
    [](const auto& info) { return info.param.name; });

TEST(RandomLtd, KeepsTheSameTokensHoweverABatchIsDivided) {
  TowerRun whole(section(), {}, 4, 4), halves(section(), {}, 4, 2), rows(section(), {}, 4, 1);
  for (int step = 0; step < 3; ++step) {
    const double loss = whole.step();
    const std::vector<at::Tensor> kept = whole.kept();
    for (TowerRun* other : {&halves, &rows}) {
      EXPECT_NEAR(other->step(), loss, 1e-6);
      const std::vector<at::Tensor> found = other->kept();
      EXPECT_TRUE(found[0].equal(kept[0]) && found[1].equal(kept[1])) << step;
    }
  }
  EXPECT_LT((halves.weights() - whole.weights()).abs().max().item<double>(), 1e-6);
  EXPECT_LT((rows.weights() - whole.weights()).abs().max().item<double>(), 1e-6);
  // Counted once for each sample of a step: 5, 5 and 6 tokens in two layers, 12 in the others.
  const std::int64_t consumed = 4 * (2 * (5 + 5 + 6) + 3 * 2 * 12);
  for (const TowerRun* one : {&whole, &halves, &rows}) {
    const Json state = Json::parse(one->saved());
    EXPECT_EQ(state.at("consumed_layer_tokens"), Json(consumed));
    EXPECT_EQ(state.at("current_value"), Json(6));
  }
}

TEST(RandomLtd, CountsTheTokensOfAMicroBatchOnceThatIsGivenUpAndDoneAgain) {
  for (const int failing : {0, 1, 2, 3}) {
    TowerRun run(section(), {}, 4, 2), undisturbed(section(), {}, 4, 2);
    for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
      Batch batch = run.batch();
      if (micro_batch == failing) {
        run.tower->fails = true;
        Batch given_up = batch;
        EXPECT_THAT([&] { run.engine->forward(given_up); },
                    ThrowsMessage<std::exception>(HasSubstr("this forward fails")));
      }
      run.engine->backward(run.engine->forward(batch));
      run.engine->step();
    }
    for (int step = 0; step < 3; ++step) undisturbed.step();
    EXPECT_EQ(run.saved(), undisturbed.saved()) << failing;
  }
}

TEST(RandomLtd, KeepsTheSameTokensOnTwoRanks) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> both(&communicator, [](Communicator*) {});
    TowerRun alone(section()), pair(section(), {}, 4, 2, both);
    for (int step = 0; step < 3; ++step) {
      const double loss = alone.step();
      EXPECT_NEAR(pair.step(), loss, 1e-6);
      const std::vector<at::Tensor> kept = alone.kept(), found = pair.kept();
      for (const std::size_t layer : {0u, 1u}) {
        EXPECT_TRUE(found[layer].equal(kept[layer].narrow(0, 2 * communicator.rank(), 2)));
      }
    }
    EXPECT_LT((pair.weights() - alone.weights()).abs().max().item<double>(), 1e-6);
    const TemporaryFolder folder;
    EXPECT_EQ(pair.saved(communicator.all_gather_text("folder", folder.path().string())[0]), alone.saved());
    communicator.all_gather_text("saved", "");
  });
}

TEST(RandomLtd, SendsNothingMoreAtStage3) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> both(&communicator, [](Communicator*) {});
    const std::string zero = R"("zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0})";
    const auto bytes_of = [&](const std::string& members) {
      TowerRun run(members, {}, 4, 2, both);
      run.step();  // the first finds out in which order parameters are used
      const auto before = communicator.log().total().bytes;
      for (int step = 0; step < 3; ++step) run.step();
      return communicator.log().total().bytes - before;
    };
    const auto plain = bytes_of(zero);
    EXPECT_GT(plain, 0);
    EXPECT_EQ(bytes_of(section() + ", " + zero), plain);
  });
}

TEST(RandomLtd, ChangesNothingWhereAllTokensAreKept) {
  TowerRun run(section("", 12)), plain("");
  for (int step = 0; step < 3; ++step) EXPECT_EQ(run.step(), plain.step());
  EXPECT_TRUE(run.weights().equal(plain.weights()));
}

TEST(RandomLtd, KeepsAllTokensFromTheEndOfTheScheduleOn) {
  TowerRun run(section("", 11));
  for (int step = 0; step < 11; ++step) run.step();
  EXPECT_EQ(run.tower->seen[1].sizes(), (Numbers{4, 11}));
  EXPECT_EQ(run.tower->seen[10 * kLayers + 1].sizes(), (Numbers{1, 12}));  // the layer's own
}

TEST(RandomLtd, LeavesEvaluationAlone) {
  TowerRun run(section()), plain("");
  const auto evaluate = [](TowerRun& one) { return one.engine->eval_batch([&] { return one.batch(); }, 1); };
  EXPECT_EQ(evaluate(run), evaluate(plain));
}

TEST(RandomLtd, GoesOnWhereItWasSavedUnderTheModelsOwnNames) {
  const TemporaryFolder folder;
  // An observer that is new to the run comes first, and is new to the checkpoint too.
  TowerRun straight(section()), resumed(section() + R"(, "capstan": {"recompute": {"every": 1}})"), plain("");
  for (int i = 0; i < 2; ++i) straight.step();
  const std::string tag = straight.engine->save_checkpoint(folder.path().string());
  resumed.engine->load_checkpoint(folder.path().string());
  for (int i = 0; i < 2; ++i) resumed.batch();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(resumed.step(), straight.step());
  EXPECT_EQ(resumed.saved(), straight.saved());

  // One who does not drop tokens reads the same checkpoint.
  ::testing::internal::CaptureStderr();
  plain.engine->load_checkpoint(folder.path().string());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(": holds a state of observer 'random_ltd', which this run does not have. The state is not "
                        "used."));
  plain.engine->save_checkpoint(folder.path().string(), "plain");
  ::testing::internal::CaptureStderr();
  resumed.engine->load_checkpoint(folder.path().string(), "plain");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(": holds no state of observer 'random_ltd', which begins anew."));
  EXPECT_NE(plain.step(), 0);
}

TEST(RandomLtd, TellsMonitorsWhatIsKept) {
  const TemporaryFolder folder;
  TowerRun run(section() + R"(, "csv_monitor": {"enabled": true, "job_name": "run", "output_path": ")" +
               folder.path().string() + "\"}");
  for (int i = 0; i < 3; ++i) run.step();
  run.engine.reset();
  EXPECT_THAT(read_bytes(folder.path() / "run/Train_Samples_random_ltd_kept.csv"),
              HasSubstr("4,5.0\r\n8,5.0\r\n12,6.0\r\n"));
  EXPECT_THAT(read_bytes(folder.path() / "run/Train_Samples_consumed_layer_tokens.csv"),
              HasSubstr("4,136.0\r\n8,272.0\r\n12,416.0\r\n"));
}

void expect_refusal(const std::string& members, const Shape& shape, const std::string& sentence) {
  EXPECT_THAT(
      [&] {
        TowerRun run(members, shape);
        run.step();
      },
      ThrowsMessage<std::exception>(HasSubstr("observer 'random_ltd'" + sentence)));
}

/// A mistake of the configuration, which has the exit code of one.
void expect_mistake(const std::string& members, const Shape& shape, const std::string& sentence) {
  EXPECT_THAT(
      [&] {
        TowerRun run(members, shape);
        run.step();
      },
      ThrowsMessage<ConfigError>("data_efficiency.data_routing.random_ltd." + sentence));
}

TEST(RandomLtd, RefusesCountsThatAreNotTheModelsAllAtOnce) {
  std::string members = section();
  members.replace(members.find("\"total_layer_num\": 4"), 20, "\"total_layer_num\": 12");
  const std::string count = "total_layer_num: 12, but the model has 4 layers, 'blocks.0' to 'blocks.3'.";
  const std::string id =
      "random_ltd_layer_id: the model has no layer 10 behind 'blocks.2': it has 4 layers, 'blocks.0' to 'blocks.3'.";
  expect_mistake(members, {}, count);
  members.replace(members.find("[1, 2]"), 6, "[2, 10]");
  expect_mistake(members, {}, count + "\ndata_efficiency.data_routing.random_ltd." + id);
  members = section();
  members.replace(members.find("[1, 2]"), 6, "[2, 10]");
  expect_mistake(members, {}, id);
}

TEST(RandomLtd, RefusesAModelWithoutLayers) {
  expect_mistake(section(), {.describes = R"({"layer_names": []})"},
                 "total_layer_num: the model has no layers that could drop tokens: it neither lists \"layer_names\" "
                 "in its description nor numbers modules of one class from 0.");
  expect_refusal(
      section(), {.wraps = false},
      ": random_ltd_layer_id: none of 'blocks.1', 'blocks.2' ran through capstan::layer in the first step, so "
      "no token can be dropped. The model's author has to call its layers through capstan::layer.");
}

TEST(RandomLtd, RefusesAMaskThatTheLayersDoNotTake) {
  const std::string sentence =
      "model_mask_name: the layer takes no argument 'attention_mask'. Name the one that is its "
      "mask, or null where layers take none.";
  expect_mistake(section("", 5, "decoder", R"("attention_mask")"), {}, sentence);
  expect_mistake(section("", 5, "encoder", R"("attention_mask")"), {.encoder = true}, sentence);
}

TEST(RandomLtd, RefusesHiddenStatesInTheOtherOrder) {
  expect_mistake(section("", 5, "decoder", "null", "seq_batch_dim"), {},
                 "hidden_state_order: by \"seq_batch_dim\" the hidden states [4, 12, 16] would have "
                 "the 4 samples of the batch in their second of three dimensions.");
}

TEST(RandomLtd, WarnsWhereSequencesAreShorterThanTheMostThatIsKept) {
  std::string members = section();
  members.replace(members.find("\"max_value\": 12"), 15, "\"max_value\": 24");
  ::testing::internal::CaptureStderr();
  TowerRun run(members);
  run.step();
  run.step();
  const std::string told = ::testing::internal::GetCapturedStderr();
  const std::string sentence =
      "random_ltd_schedule.max_value: 24 is above the sequence length, 12: no token is dropped "
      "from the step on in which as many are kept, and consumed_layer_tokens counts too many.";
  EXPECT_THAT(told, HasSubstr(sentence));
  EXPECT_EQ(told.find(sentence), told.rfind(sentence));
}

TEST(RandomLtd, RefusesALearningRateByLayerTokens) {
  EXPECT_THAT([] { TowerRun run(section(R"(, "layer_token_lr_schedule": {"enabled": true})")); },
              ThrowsMessage<std::exception>(HasSubstr(
                  "layer_token_lr_schedule.enabled: is not implemented, here or in DeepSpeed. Set it to false.")));
}

TEST(RandomLtd, TrainsGpt) {
  std::string members = section();
  members.replace(members.find("\"max_value\": 12"), 15, "\"max_value\": 16");
  ProbeRun run("", members);
  const std::vector<double> losses = run.steps(8);
  EXPECT_LT(losses[6], losses[0]);
}

}  // namespace
}  // namespace capstan
