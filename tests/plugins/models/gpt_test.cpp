#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "core/model/decoding.hpp"
#include "tests/plugins/models/built_model.hpp"
#include "tests/plugins/models/token_batch.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using testing::built_model;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parameter;
using testing::TestLayers;
using ::testing::ThrowsMessage;
using testing::token_batch;

Json params(Json::Object given = {}) {
  Json all = Json::object();
  all["size"] = "tiny";
  all["init"] = "formula";
  all["init_seed"] = 1;
  for (auto& [key, value] : given) all[key] = value;
  return all;
}

Model gpt(const Json& parameters = params()) { return built_model("gpt", parameters); }

/// The opening 1,025 bytes of the text that the recorded runs read: their first 8 samples of 128.
std::string excerpt() {
  std::ifstream file(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/models/parity_excerpt.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Gpt, HasTheParametersOfTheRecordedRunsInTheirOrder) {
  Model model = gpt();

  std::vector<std::string> first, last;
  std::int64_t count = 0;
  for (const NamedTensor& named : model.parameters()) count += named.tensor.numel();
  for (std::size_t i = 0; i < 14; ++i) first.push_back(model.parameters()[i].name);
  for (std::size_t i = 50; i < 53; ++i) last.push_back(model.parameters()[i].name);

  EXPECT_EQ(count, 875'264);
  ASSERT_EQ(model.parameters().size(), 53u);
  EXPECT_THAT(first, ElementsAre("tok_emb.weight", "pos_emb.weight", "blocks.0.ln1.weight", "blocks.0.ln1.bias",
                                 "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight",
                                 "blocks.0.attn.proj.bias", "blocks.0.ln2.weight", "blocks.0.ln2.bias",
                                 "blocks.0.mlp.fc.weight", "blocks.0.mlp.fc.bias", "blocks.0.mlp.proj.weight",
                                 "blocks.0.mlp.proj.bias"));
  EXPECT_THAT(last, ElementsAre("ln_f.weight", "ln_f.bias", "head.weight"));
  EXPECT_THAT(model.buffers(), ::testing::IsEmpty());
  EXPECT_THAT(model.modules(), ::testing::Contains(::testing::AllOf(
                                   ::testing::Field(&ModuleRecord::path, "blocks.3.attn.qkv"),
                                   ::testing::Field(&ModuleRecord::class_name, "torch::nn::LinearImpl"))));
}

// Values of the formula computed by an independent program.
TEST(Gpt, StartsFromTheFormulaBitByBit) {
  const Model seed1 = gpt(), seed7 = gpt(params({{"init_seed", 7}}));
  const auto value = [](const Model& model, const char* name, std::int64_t i) {
    return parameter(model, name).flatten()[i].item<float>();
  };

  EXPECT_EQ(value(seed1, "tok_emb.weight", 0), -0x1.300c140000000p-8f);
  EXPECT_EQ(value(seed1, "tok_emb.weight", 32767), 0x1.2b90540000000p-5f);
  EXPECT_EQ(value(seed1, "blocks.3.mlp.proj.weight", 65535), -0x1.c9e75e0000000p-7f);
  EXPECT_EQ(value(seed1, "blocks.0.attn.qkv.weight", 129), -0x1.0b56a40000000p-5f);
  EXPECT_EQ(value(seed7, "head.weight", 5), -0x1.fdb6a80000000p-6f);
  EXPECT_EQ(value(seed7, "blocks.1.attn.proj.weight", 0), -0x1.868ff60000000p-8f);
  EXPECT_EQ(value(seed1, "blocks.2.ln1.weight", 5), 1.0f);
  EXPECT_EQ(value(seed1, "blocks.2.attn.qkv.bias", 5), 0.0f);
}

// DeepSpeed 0.19.8, two ranks of four samples, fp32, before the first update.
TEST(Gpt, GivesTheRecordedFirstLoss) {
  Model model = gpt();
  const std::string text = excerpt();
  Batch rank0 = token_batch(text, 0, 4, 128), rank1 = token_batch(text, 4, 4, 128);

  const double loss = (model.forward(rank0).item<double>() + model.forward(rank1).item<double>()) / 2;

  EXPECT_NEAR(loss, 5.555894374847412, 1e-6);
}

/// The definition once more, with torch's functions on the raw parameters.
at::Tensor reference_loss(const Model& model, const Batch& batch, std::int64_t layers, std::int64_t heads) {
  const auto p = [&](const std::string& name) { return parameter(model, name).to(torch::kDouble); };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const auto centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * p(name + ".weight") + p(name + ".bias");
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(p(name + ".weight").t()) + p(name + ".bias");
  };
  const auto ids = batch.tensors.at("input_ids");
  const auto time = ids.size(1);
  auto h = p("tok_emb.weight").index({ids}) + p("pos_emb.weight").slice(0, 0, time);
  const auto width = h.size(-1) / heads;
  const auto later = torch::ones({time, time}, torch::kBool).triu(1);
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    const auto qkv = linear(norm(h, block + ".ln1"), block + ".attn.qkv").chunk(3, -1);
    std::vector<at::Tensor> mixed;
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto part = [&](int which) { return qkv[which].slice(-1, head * width, (head + 1) * width); };
      const auto scores = part(0).matmul(part(1).transpose(1, 2)) / std::sqrt(static_cast<double>(width));
      mixed.push_back(scores.masked_fill(later, -INFINITY).softmax(-1).matmul(part(2)));
    }
    h = h + linear(torch::cat(mixed, -1), block + ".attn.proj");
    const auto x = linear(norm(h, block + ".ln2"), block + ".mlp.fc");
    const auto gelu = 0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))).tanh());
    h = h + linear(gelu, block + ".mlp.proj");
  }
  const auto log_probabilities = norm(h, "ln_f").matmul(p("head.weight").t()).log_softmax(-1);
  return -log_probabilities.gather(-1, batch.tensors.at("labels").unsqueeze(-1)).mean();
}

TEST(Gpt, ComputesItsDefinition) {
  Model model = gpt(params({{"layers", 2}, {"d", 48}, {"heads", 3}, {"seq", 20}, {"init_seed", 3}}));
  Batch batch = token_batch(excerpt(), 0, 3, 20);
  torch::NoGradGuard no_grad;
  for (const NamedTensor& named : model.parameters()) {
    const at::Tensor& parameter = named.tensor;
    // Larger weights, and biases that are not 0, make every term count.
    parameter.add_(torch::sin(torch::arange(parameter.numel(), torch::kFloat)).view_as(parameter) * 0.3);
  }

  EXPECT_NEAR(model.forward(batch).item<double>(), reference_loss(model, batch, 2, 3).item<double>(), 2e-5);
}

TEST(Gpt, GivesEveryParameterAGradient) {
  Model model = gpt();
  Batch batch = token_batch(excerpt(), 0, 2, 128);

  model.forward(batch).backward();

  for (const NamedTensor& named : model.parameters()) {
    const at::Tensor& parameter = named.tensor;
    ASSERT_TRUE(parameter.grad().defined()) << named.name;
    EXPECT_GT(parameter.grad().abs().sum().item<float>(), 0) << named.name;
  }
}

TEST(Gpt, TakesSequencesShorterThanItsOwn) {
  Model model = gpt();
  Batch batch = token_batch(excerpt(), 0, 4, 17);

  EXPECT_NEAR(model.forward(batch).item<double>(), reference_loss(model, batch, 4, 4).item<double>(), 2e-5);
}

TEST(Gpt, CutsTheBatchToTheCurriculumsLength) {
  Model model = gpt();
  Batch whole = token_batch(excerpt(), 0, 1, 128), cut = token_batch(excerpt(), 0, 1, 32);
  whole.numbers["curriculum_seqlen"] = 32;

  EXPECT_EQ(model.forward(whole).item<double>(), model.forward(cut).item<double>());
}

TEST(Gpt, RunsInBf16WithALossInFp32) {
  Model model = gpt();
  Batch batch = token_batch(excerpt(), 0, 4, 128);
  const double exact = model.forward(batch).item<double>();
  for (const NamedTensor& named : model.parameters()) named.tensor.set_data(named.tensor.data().to(torch::kBFloat16));

  const at::Tensor loss = model.forward(batch);
  loss.backward();

  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_NEAR(loss.item<double>(), exact, 0.01);
  EXPECT_EQ(parameter(model, "head.weight").grad().scalar_type(), torch::kBFloat16);
}

TEST(Gpt, DrawsGpt2sInitialWeightsFromTheRunsSeed) {
  torch::manual_seed(11);
  const Model first = gpt(params({{"init", "normal"}}));
  const Model second = gpt(params({{"init", "normal"}}));
  torch::manual_seed(11);
  const Model again = gpt(params({{"init", "normal"}}));
  const auto deviation = [&](const char* name) { return parameter(first, name).std().item<double>(); };

  EXPECT_TRUE(parameter(first, "head.weight").equal(parameter(again, "head.weight")));
  EXPECT_FALSE(parameter(first, "head.weight").equal(parameter(second, "head.weight")));
  EXPECT_NEAR(deviation("tok_emb.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("blocks.0.mlp.fc.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("blocks.0.mlp.proj.weight"), 0.02 / std::sqrt(8.0), 0.0002);
  EXPECT_NEAR(deviation("blocks.3.attn.proj.weight"), 0.02 / std::sqrt(8.0), 0.0002);
  EXPECT_EQ(parameter(first, "blocks.1.ln2.weight").min().item<double>(), 1);
  EXPECT_EQ(parameter(first, "blocks.1.mlp.fc.bias").abs().max().item<double>(), 0);
}

TEST(Gpt, RunsEachBlockAsALayer) {
  Model model = gpt();
  Batch batch = token_batch(excerpt(), 0, 1, 8);
  TestLayers layers;
  batch.layers = &layers;

  model.forward(batch);

  EXPECT_THAT(layers.seen, ElementsAre("blocks.0", "blocks.1", "blocks.2", "blocks.3"));
}

TEST(Gpt, DescribesItself) {
  Model model = gpt(params({{"size", "mini"}, {"vocab", 300}, {"layers", 1}}));

  Json facts = model.describe();
  // What names elsewhere are good for is tested with the programs that read them.
  for (const char* elsewhere : {"hf", "hf_linear", "gguf"}) facts.erase(elsewhere);
  EXPECT_EQ(facts, Json::parse(R"({"sequence_length": 256, "hidden_size": 192, "vocab_size": 300, "layers": 1,
    "heads": 6, "positions": 256, "ragged_decode": true, "reads": ["document_ids", "position_ids"],
    "fused": {"blocks.0.attn.qkv": 3}, "pruned_shapes": {
      "ff": [{"tensor": "blocks.0.mlp.fc.weight", "axis": 0, "per": 1}],
      "kept_heads": [{"tensor": "blocks.0.attn.proj.weight", "axis": 1, "per": 32}]}})"));
}

TEST(Gpt, HasTheWidthsAndHeadsThatPruningLeaves) {
  const Json shape = params({{"layers", 2},
                             {"d", 64},
                             {"heads", 4},
                             {"ff", Json(Json::Array{48, 16})},
                             {"kept_heads", Json(Json::Array{3})}});
  Model model = gpt(shape);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const NamedTensor& one : model.parameters()) shapes[one.name] = one.tensor.sizes().vec();
  EXPECT_THAT(shapes.at("blocks.0.mlp.fc.weight"), ElementsAre(48, 64));
  EXPECT_THAT(shapes.at("blocks.1.mlp.proj.weight"), ElementsAre(64, 16));
  EXPECT_THAT(shapes.at("blocks.1.attn.qkv.weight"), ElementsAre(3 * 3 * 16, 64));
  EXPECT_THAT(shapes.at("blocks.0.attn.proj.weight"), ElementsAre(64, 3 * 16));
  Batch batch = token_batch(excerpt(), 0, 1, 8);
  EXPECT_GT(model.forward(batch).item<double>(), 4);

  EXPECT_THAT(
      [] {
        gpt(params({{"layers", 3}, {"ff", Json(Json::Array{48, 16})}}));
      },
      ThrowsMessage<std::exception>(HasSubstr("ff: 2 numbers for 3 blocks")));
  EXPECT_THAT(
      [] {
        gpt(params({{"heads", 4}, {"kept_heads", Json(Json::Array{5})}}));
      },
      ThrowsMessage<std::exception>(HasSubstr("kept_heads: 5 of 4 heads")));
}

TEST(Gpt, ContinuesSequencesAsItComputesThemWhole) {
  Model model = gpt(params({{"layers", 2}, {"d", 48}, {"heads", 3}, {"seq", 20}, {"init_seed", 3}}));
  Batch batch = token_batch(excerpt(), 0, 2, 12);
  const auto ids = batch.tensors.at("input_ids"), last = batch.tensors.at("labels").select(1, 11).clone();
  batch.tensors.at("labels").narrow(1, 0, 11).fill_(-100);
  const torch::NoGradGuard no_grad;
  const double loss = model.forward(batch).item<double>();

  for (const std::int64_t calls : {1, 2, 5, 12}) {
    Decoding decoding(model.decode_functions(), 2, 12);
    at::Tensor logits;
    for (std::int64_t call = 0; call < calls; ++call) {
      logits = decoding.logits(ids.slice(1, 12 * call / calls, 12 * (call + 1) / calls));
    }
    EXPECT_NEAR(-logits.log_softmax(-1).gather(1, last.unsqueeze(1)).mean().item<double>(), loss, 1e-5) << calls;
  }
}

TEST(Gpt, ContinuesSequencesOfDifferentLengthsAsEachAlone) {
  const Model model = gpt(params({{"layers", 2}, {"d", 48}, {"heads", 3}, {"seq", 20}, {"init_seed", 3}}));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(Decoding::takes_short_rows(model));
  const auto ids = token_batch(excerpt(), 0, 2, 12).tensors.at("input_ids");
  Decoding together(model.decode_functions(), 2, 12), first(model.decode_functions(), 1, 12),
      second(model.decode_functions(), 1, 12);

  const auto prompts = ids.slice(1, 0, 5).clone();
  prompts[1].slice(0, 3).fill_(-1);
  const auto begun = together.logits(prompts);
  EXPECT_TRUE(begun[0].equal(first.logits(ids.slice(0, 0, 1).slice(1, 0, 5))[0]));
  EXPECT_TRUE(begun[1].equal(second.logits(ids.slice(0, 1, 2).slice(1, 0, 3))[0]));
  for (std::int64_t step = 0; step < 4; ++step) {
    const auto next = at::cat({ids.slice(0, 0, 1).slice(1, 5 + step, 6 + step),  //
                               ids.slice(0, 1, 2).slice(1, 3 + step, 4 + step)});
    const auto logits = together.logits(next);
    EXPECT_TRUE(logits[0].equal(first.logits(next.slice(0, 0, 1))[0])) << step;
    EXPECT_TRUE(logits[1].equal(second.logits(next.slice(0, 1, 2))[0])) << step;
  }
}

TEST(Gpt, RefusesHeadsThatDoNotDivideItsWidth) {
  EXPECT_THAT(
      [] {
        gpt(params({{"heads", 3}}));
      },
      ThrowsMessage<PluginError>(HasSubstr("heads: 3 heads do not divide d 128. Choose d as a multiple of heads.")));
}

TEST(Gpt, RefusesSequencesLongerThanItsPositions) {
  Model model = gpt(params({{"seq", 16}}));
  Batch batch = token_batch(excerpt(), 0, 1, 32);

  EXPECT_THAT([&] { model.forward(batch); },
              ThrowsMessage<PluginError>(
                  "model 'gpt', forward: input_ids: 32 positions, this model has 16. Shorten the sequences, "
                  "or raise the model's parameter 'seq'."));
}

TEST(Gpt, NamesTheIdThatIsOutsideItsVocabulary) {
  Model model = gpt(params({{"vocab", 64}}));
  Batch batch = token_batch("AB~CD", 0, 1, 4);
  Batch negative = token_batch("\1\2\3\4\5", 0, 1, 4);
  negative.tensors["labels"][0][1] = -1;

  EXPECT_THAT([&] { model.check(batch); },
              ThrowsMessage<PluginError>(
                  "model 'gpt', batch: input_ids: holds id 126, this model's vocabulary is 0 to 63. Raise "
                  "the model's parameter 'vocab', or use data of that vocabulary."));
  EXPECT_THAT([&] { model.check(negative); },
              ThrowsMessage<PluginError>(
                  "model 'gpt', batch: labels: holds id -1, this model's vocabulary is 0 to 63. Raise the "
                  "model's parameter 'vocab', or use data of that vocabulary."));
}

TEST(Gpt, RefusesABatchOfAnotherForm) {
  Model model = gpt();
  Batch floats = token_batch(excerpt(), 0, 1, 4), uneven = token_batch(excerpt(), 0, 1, 4), empty;
  floats.tensors["input_ids"] = torch::zeros({1, 4});
  uneven.tensors["labels"] = torch::zeros({1, 3}, torch::kLong);

  EXPECT_THAT([&] { model.forward(floats); },
              ThrowsMessage<PluginError>(
                  "model 'gpt', forward: input_ids: got a Float tensor of shape [1, 4]. It must be int64 "
                  "[batch, time] and not empty."));
  EXPECT_THAT([&] { model.forward(uneven); },
              ThrowsMessage<PluginError>(
                  "model 'gpt', forward: labels: shape [1, 3] differs from that of input_ids, [1, 4]. Every "
                  "position needs one label."));
  EXPECT_THAT([&] { model.forward(empty); },
              ThrowsMessage<PluginError>(HasSubstr("the batch has no tensor 'input_ids'")));
}

}  // namespace
}  // namespace capstan
