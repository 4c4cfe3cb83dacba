// Rows of several documents: losses and gradients are those of each document by itself.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "capstan/sdk/aten.hpp"
#include "tests/plugins/models/built_model.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Lengths = std::vector<std::int64_t>;

/// Documents of two rows of 24 tokens, the last of each being padding.
const std::vector<Lengths> kRows = {{9, 1, 6, 5, 3}, {13, 2, 7, 2}};
constexpr std::int64_t kTokens = 24, kPositions = 32;

/// A token that is not dropped, in tests that drop some.
bool is_kept(std::int64_t place) { return place % 4 != 1; }

at::Tensor text_of(std::int64_t begin, std::int64_t count) {
  return at::arange(begin, begin + count, at::kLong).square().add(3).remainder(47).unsqueeze(0);
}

/// A document's labels: the tokens that follow, and none for the last.
at::Tensor labels_of(std::int64_t begin, std::int64_t count) {
  at::Tensor labels = text_of(begin + 1, count).clone();
  labels.narrow(1, count - 1, 1).fill_(-100);
  return labels;
}

/// A document by itself.
struct Alone {
  std::int64_t begin;  // of its row
  Batch batch;
  std::int64_t labels;
};

std::vector<Alone> documents() {
  std::vector<Alone> all;
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    std::int64_t begin = 0;
    for (const std::int64_t length : kRows[row]) {
      const std::int64_t first = static_cast<std::int64_t>(row) * 100 + begin;
      if (begin + length < kTokens && length > 1) {
        Alone one{begin, {}, length - 1};
        one.batch.tensors = {{"input_ids", text_of(first, length)}, {"labels", labels_of(first, length)}};
        all.push_back(std::move(one));
      }
      begin += length;
    }
  }
  return all;
}

Batch packed() {
  std::vector<at::Tensor> inputs, labels, ids, positions;
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    std::vector<at::Tensor> row_labels, row_ids, row_positions;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < kRows[row].size(); ++i) {
      const std::int64_t length = kRows[row][i], first = static_cast<std::int64_t>(row) * 100 + begin;
      begin += length;
      const bool padding = begin == kTokens;
      row_labels.push_back(padding ? at::full({1, length}, -100, at::kLong) : labels_of(first, length));
      row_ids.push_back(at::full({1, length}, padding ? -1 : static_cast<std::int64_t>(i), at::kInt));
      row_positions.push_back(at::arange(length, at::kLong).unsqueeze(0));
    }
    inputs.push_back(text_of(static_cast<std::int64_t>(row) * 100, kTokens));
    labels.push_back(at::cat(row_labels, 1));
    ids.push_back(at::cat(row_ids, 1));
    positions.push_back(at::cat(row_positions, 1));
  }
  Batch batch;
  batch.tensors = {{"input_ids", at::cat(inputs)},
                   {"labels", at::cat(labels)},
                   {"document_ids", at::cat(ids)},
                   {"position_ids", at::cat(positions)}};
  return batch;
}

/// Weights that make every term count: a function of the parameter's place.
Model filled(Model model) {
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (const NamedTensor& one : model.parameters()) {
    const at::Tensor values = at::arange(one.tensor.numel(), at::kFloat);
    one.tensor.copy_(((values * 1.7 + phase).sin() * 0.3).view(one.tensor.sizes()));
    if (one.tensor.dim() == 1) one.tensor.add_(1);
    phase += 0.37;
  }
  return model;
}

Model decoder(const std::string& type, const std::string& more = "{}") {
  Json config = Json::parse(R"({"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6})");
  config["max_position_embeddings"] = kPositions;
  config["model_type"] = type;
  const Json given = Json::parse(more);
  for (const auto& [key, value] : given.as_object()) config[key] = value;
  Json params = Json::object();
  params["config"] = config;
  return filled(testing::built_model("decoder", params));
}

Model gpt() {
  Json params = Json::parse(R"({"size": "tiny", "init": "formula", "init_seed": 1, "layers": 2, "d": 24, "heads": 4,
    "vocab": 50})");
  params["seq"] = kPositions;
  return filled(testing::built_model("gpt", params));
}

std::vector<std::pair<std::string, Model>> models() {
  std::vector<std::pair<std::string, Model>> all;
  all.emplace_back("gpt", gpt());
  const std::map<std::string, std::string> decoders = {
      {"gemma2", R"({"sliding_window": 4})"},
      {"gemma3_text", R"({"sliding_window": 4, "sliding_window_pattern": 2})"},
      {"llama", R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}})"},
      {"mistral", R"({"sliding_window": 5})"},
      {"olmo", R"({"clip_qkv": 0.4})"},
      {"phi3", R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 2], "long_factor": [2, 3, 4]},
                   "original_max_position_embeddings": 8})"},
      {"smollm3", R"({"no_rope_layer_interval": 2})"}};
  for (const auto& [type, more] : decoders) all.emplace_back(type, decoder(type, more));
  return all;
}

/// Leaves out of each layer the tokens of a row's places that are not kept, as random-LTD does; `begin`: the place of
/// the first token.
testing::TestLayers::Wrap dropping(std::int64_t begin) {
  return [begin](const capstan_layer_call& call, const capstan_inner& inner) {
    const at::Tensor hidden = *reinterpret_cast<const at::Tensor*>(call.hidden);
    std::vector<std::int64_t> kept;
    for (std::int64_t i = 0; i < hidden.size(1); ++i) {
      if (is_kept(begin + i)) kept.push_back(i);
    }
    if (kept.empty()) return sdk::give(hidden);
    const at::Tensor places = at::tensor(kept, at::kLong);
    const at::Tensor& given = *reinterpret_cast<const at::Tensor*>(call.arguments[0]->tensor);
    const at::Tensor positions = given.index_select(1, places), some = hidden.index_select(1, places);
    const capstan_argument argument{sizeof(capstan_argument), as_str("position_ids"), sdk::lend(positions)};
    const capstan_argument* const arguments[] = {&argument};
    capstan_layer_call changed = call;
    changed.arguments = arguments;
    const at::Tensor out = sdk::take(testing::TestLayers::run_inner(changed, inner, sdk::lend(some)));
    return sdk::give(hidden.index_copy(1, places, out));
  };
}

double forward_and_backward(Model& model, Batch& batch, double share, const testing::TestLayers::Wrap& wrap) {
  testing::TestLayers layers;
  layers.wrap = wrap;
  if (wrap) batch.layers = &layers;
  model.check(batch);
  const at::Tensor loss = model.forward(batch) * share;
  loss.backward();
  return loss.item<double>();
}

std::map<std::string, at::Tensor> take_gradients(const Model& model) {
  std::map<std::string, at::Tensor> gradients;
  for (const NamedTensor& one : model.parameters()) {
    gradients[one.name] = one.tensor.grad().clone();
    one.tensor.mutable_grad().reset();
  }
  return gradients;
}

void expect_as_alone(Model& model, bool drops) {
  Batch rows = packed();
  std::int64_t labels = 0;
  for (const Alone& one : documents()) labels += one.labels;
  const double loss = forward_and_backward(model, rows, 1, drops ? dropping(0) : testing::TestLayers::Wrap());
  const auto gradients = take_gradients(model);

  double sum = 0;
  for (Alone& one : documents()) {
    const double share = static_cast<double>(one.labels) / static_cast<double>(labels);
    sum += forward_and_backward(model, one.batch, share, drops ? dropping(one.begin) : testing::TestLayers::Wrap());
  }

  EXPECT_NEAR(loss, sum, 1e-6 * sum);
  double apart = 0, size = 0;
  for (const auto& [name, alone] : take_gradients(model)) {
    const double one_apart = (gradients.at(name) - alone).norm().item<double>(), one = alone.norm().item<double>();
    // Some gradients are small differences of large sums.
    EXPECT_LE(one_apart, 1e-5 * one) << name;
    EXPECT_GT(one, 0) << name;
    apart += one_apart * one_apart;
    size += one * one;
  }
  EXPECT_LE(std::sqrt(apart), 1e-6 * std::sqrt(size));
}

TEST(PackedRows, GiveTheLossAndTheGradientsOfEachDocumentByItself) {
  for (auto& [name, model] : models()) {
    SCOPED_TRACE(name);
    expect_as_alone(model, /*drops=*/false);
  }
}

TEST(PackedRows, GiveThemWhereAComponentDropsTokens) {
  Model windowed = decoder("mistral", R"({"sliding_window": 5})"),
        capped = decoder("gemma2", R"({"sliding_window": 4})");
  expect_as_alone(windowed, /*drops=*/true);
  expect_as_alone(capped, /*drops=*/true);
}

TEST(PackedRows, OfGptSeeTheirOwnDocumentsWhereAComponentDropsTokens) {
  Model model = gpt();
  Batch first = packed(), second = packed();
  second.tensors.at("input_ids").narrow(1, 0, 9).add_(1);  // another first document in each row
  for (Batch* batch : {&first, &second}) batch->tensors.at("labels").narrow(1, 0, 13).fill_(-100);
  EXPECT_EQ(forward_and_backward(model, first, 1, dropping(0)), forward_and_backward(model, second, 1, dropping(0)));
}

TEST(PackedRows, AreCutByACurriculum) {
  Model model = decoder("llama");
  Batch rows = packed(), short_rows = packed();
  rows.numbers["curriculum_seqlen"] = 11;
  for (auto& [name, tensor] : short_rows.tensors) tensor = tensor.narrow(1, 0, 11).contiguous();
  EXPECT_EQ(model.forward(rows).item<double>(), model.forward(short_rows).item<double>());
}

TEST(PackedRows, InBf16GiveALossNearThatOfFp32) {
  Model model = decoder("gemma3_text", R"({"sliding_window": 4})");
  Batch rows = packed();
  const double exact = model.forward(rows).item<double>();
  for (const NamedTensor& one : model.parameters()) one.tensor.set_data(one.tensor.data().to(at::kBFloat16));
  EXPECT_NEAR(model.forward(rows).item<double>(), exact, 0.05 * exact);
}

TEST(PackedRows, AreNamedWhereTheyCannotBe) {
  const Model model = decoder("llama");
  const auto refused = [&](Batch batch, const std::string& text) {
    EXPECT_THAT([&] { model.check(batch); }, ThrowsMessage<PluginError>(HasSubstr(text)));
  };
  Batch batch = packed();
  batch.tensors.erase("position_ids");
  refused(batch, "position_ids: is missing beside document_ids. Give both for rows of several documents, or neither.");
  batch = packed();
  batch.tensors.erase("document_ids");
  refused(batch, "document_ids: is missing beside position_ids.");
  batch = packed();
  batch.tensors.at("document_ids") = batch.tensors.at("document_ids").to(at::kLong);
  refused(batch, "document_ids: got a Long tensor of shape [2, 24]. It must be int32 [2, 24], as input_ids.");
  batch = packed();
  batch.tensors.at("position_ids").add_(kPositions);
  refused(batch,
          "position_ids: holds position 44, this model has positions 0 to 31. Shorten the documents, or raise the "
          "model's parameter 'config.max_position_embeddings'.");
}

}  // namespace
}  // namespace capstan
