#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/outer.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/model/decoding.hpp"
#include "tests/plugins/models/built_model.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using testing::parameter;
using ::testing::ThrowsMessage;
using Shape = std::vector<std::int64_t>;

/// A small model of that type with the members of `more`, a JSON object's text, beside the sizes, or in their place.
Json config(const std::string& type, const std::string& more = "{}") {
  Json all = Json::parse(R"({"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64})");
  all["model_type"] = type;
  const Json given = Json::parse(more);
  for (const auto& [key, value] : given.as_object()) all[key] = value;
  return all;
}

Model decoder(const std::string& type, const std::string& more = "{}") {
  Json params = Json::object();
  params["config"] = config(type, more);
  return testing::built_model("decoder", params);
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

Batch batch_of(std::int64_t samples, std::int64_t tokens) {
  const at::Tensor text = at::arange(samples * tokens + 1, at::kLong).square().add(3).remainder(47);
  Batch batch;
  batch.tensors = {{"input_ids", text.narrow(0, 0, samples * tokens).view({samples, tokens}).clone()},
                   {"labels", text.narrow(0, 1, samples * tokens).view({samples, tokens}).clone()}};
  return batch;
}

double loss_of(const Model& model, std::int64_t tokens = 12) {
  Batch batch = batch_of(2, tokens);
  return const_cast<Model&>(model).forward(batch).item<double>();
}

std::map<std::string, Shape> shapes_of(const Model& model) {
  std::map<std::string, Shape> shapes;
  for (const NamedTensor& one : model.parameters()) shapes[one.name] = one.tensor.sizes().vec();
  return shapes;
}

/// Of parameters of layer 1, without "model.layers.1.".
std::map<std::string, Shape> layer_of(const Model& model) {
  const std::string prefix = "model.layers.1.";
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : shapes_of(model)) {
    if (name.starts_with(prefix)) shapes[name.substr(prefix.size())] = shape;
  }
  return shapes;
}

const std::map<std::string, Shape> kLlamaLayer = {
    {"input_layernorm.weight", {24}},          {"mlp.down_proj.weight", {24, 40}},
    {"mlp.gate_proj.weight", {40, 24}},        {"mlp.up_proj.weight", {40, 24}},
    {"post_attention_layernorm.weight", {24}}, {"self_attn.k_proj.weight", {12, 24}},
    {"self_attn.o_proj.weight", {24, 24}},     {"self_attn.q_proj.weight", {24, 24}},
    {"self_attn.v_proj.weight", {12, 24}}};

std::map<std::string, Shape> with(std::map<std::string, Shape> shapes, const std::map<std::string, Shape>& more) {
  for (const auto& [name, shape] : more) shapes[name] = shape;
  return shapes;
}

std::map<std::string, Shape> without(std::map<std::string, Shape> shapes, const std::vector<std::string>& names) {
  for (const std::string& name : names) shapes.erase(name);
  return shapes;
}

TEST(Decoder, HasTheNamesAndShapesOfTransformers) {
  const std::map<std::string, Shape> biases = {
      {"self_attn.q_proj.bias", {24}}, {"self_attn.k_proj.bias", {12}}, {"self_attn.v_proj.bias", {12}}};
  const std::map<std::string, Shape> around = {{"pre_feedforward_layernorm.weight", {24}},
                                               {"post_feedforward_layernorm.weight", {24}}};
  const std::map<std::string, Shape> each_head = {{"self_attn.q_norm.weight", {6}}, {"self_attn.k_norm.weight", {6}}};
  const std::vector<std::string> norms = {"input_layernorm.weight", "post_attention_layernorm.weight"};

  for (const char* type : {"llama", "mistral", "smollm3", "gemma", "granite"}) {
    EXPECT_EQ(layer_of(decoder(type)), kLlamaLayer) << type;
  }
  EXPECT_EQ(layer_of(decoder("llama", R"({"attention_bias": true, "mlp_bias": true})")),
            with(with(kLlamaLayer, biases), {{"self_attn.o_proj.bias", {24}},
                                             {"mlp.gate_proj.bias", {40}},
                                             {"mlp.up_proj.bias", {40}},
                                             {"mlp.down_proj.bias", {24}}}));
  EXPECT_EQ(layer_of(decoder("qwen2")), with(kLlamaLayer, biases));
  EXPECT_EQ(layer_of(decoder("qwen3")), with(kLlamaLayer, each_head));
  EXPECT_EQ(layer_of(decoder("gemma2")), with(kLlamaLayer, around));
  EXPECT_EQ(layer_of(decoder("gemma3_text")), with(with(kLlamaLayer, around), each_head));
  EXPECT_EQ(layer_of(decoder("olmo")), without(kLlamaLayer, norms));
  EXPECT_EQ(layer_of(decoder("olmo2")), without(with(kLlamaLayer, {{"post_feedforward_layernorm.weight", {24}},
                                                                   {"self_attn.q_norm.weight", {24}},
                                                                   {"self_attn.k_norm.weight", {12}}}),
                                                {"input_layernorm.weight"}));
  EXPECT_EQ(layer_of(decoder("stablelm", R"({"head_dim": 8, "hidden_size": 32, "use_qkv_bias": true})"))
                .at("self_attn.q_proj.bias"),
            Shape{32});
  EXPECT_THAT(layer_of(decoder("stablelm", R"({"head_dim": 8})")), Contains(Key("input_layernorm.bias")));
  EXPECT_EQ(layer_of(decoder("phi3")),
            with(without(kLlamaLayer, {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                       "mlp.gate_proj.weight", "mlp.up_proj.weight"}),
                 {{"self_attn.qkv_proj.weight", {48, 24}}, {"mlp.gate_up_proj.weight", {80, 24}}}));
}

TEST(Decoder, ReadsTheRotarySettingsOfBothDialects) {
  const auto loss = [](const std::string& type, const std::string& more) {
    return loss_of(filled(decoder(type, more)));
  };
  const std::string llama3 =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16)";
  const double stretched =
      loss("llama", R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, )" + llama3 + "}}");
  EXPECT_EQ(stretched,
            loss("llama", R"({"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", )" + llama3 + "}}"));
  EXPECT_EQ(stretched, loss("llama", R"({"rope_theta": 500.0, "rope_scaling": {"type": "llama3", )" + llama3 + "}}"));
  EXPECT_NE(stretched, loss("llama", R"({"rope_theta": 500.0, "rope_scaling": null})"));

  const std::string windows = R"("sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"])";
  const double nested = loss("gemma3_text", "{" + windows + R"(, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}})");
  EXPECT_EQ(nested, loss("gemma3_text", "{" + windows + R"(, "rope_theta": 900.0, "rope_local_base_freq": 70.0,
      "rope_scaling": {"type": "linear", "factor": 8.0}})"));
  EXPECT_NE(nested, loss("gemma3_text", "{" + windows + R"(, "rope_theta": 900.0})"));
  EXPECT_EQ(loss("stablelm", R"({"head_dim": 8, "partial_rotary_factor": 0.5})"),
            loss("stablelm", R"({"head_dim": 8, "rope_parameters": {"partial_rotary_factor": 0.5}})"));
}

// Windows of the model types by their defaults, where layer_types does not say: the file of transformers 4 had none.
TEST(Decoder, FindsTheWindowedLayersOfOlderFiles) {
  const auto same = [](const std::string& type, const std::string& older, const std::string& types) {
    const std::string window = R"({"num_hidden_layers": 4, "sliding_window": 3, )";
    return loss_of(filled(decoder(type, window + older + "}"))) ==
           loss_of(filled(decoder(type, window + older + R"(, "layer_types": [)" + types + "]}")));
  };
  const std::string s = R"("sliding_attention")", f = R"("full_attention")";

  EXPECT_TRUE(same("gemma2", R"("x": 0)", s + "," + f + "," + s + "," + f));
  EXPECT_FALSE(same("gemma2", R"("x": 0)", f + "," + s + "," + f + "," + s));
  EXPECT_TRUE(same("gemma3_text", R"("sliding_window_pattern": 3)", s + "," + s + "," + f + "," + s));
  const std::string qwen = R"("use_sliding_window": true, "max_window_layers": 3)";
  EXPECT_TRUE(same("qwen2", qwen, f + "," + f + "," + f + "," + s));
  EXPECT_FALSE(same("qwen3", qwen, f + "," + f + "," + s + "," + s));
  EXPECT_TRUE(
      same("smollm3", R"("use_sliding_window": true, "no_rope_layer_interval": 2)", f + "," + s + "," + f + "," + s));
}

/// llama once more, in double, from the definitions.
double llama_loss(const Model& model, const Batch& batch, double theta, std::int64_t window) {
  constexpr std::int64_t kHeads = 4, kGroups = 2, kDim = 6, kTokens = 12;
  const auto p = [&](const std::string& name) { return parameter(model, name).to(at::kDouble); };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x / (x.square().mean(-1, true) + 1e-6).sqrt() * p(name + ".weight");
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) { return x.matmul(p(name + ".weight").t()); };
  const at::Tensor places = at::arange(kTokens, at::kDouble);
  std::vector<at::Tensor> angles;
  for (std::int64_t pair = 0; pair < kDim / 2; ++pair) {
    angles.push_back(places * std::pow(theta, -2.0 * static_cast<double>(pair) / kDim));
  }
  // Pair i of a head are its dimensions i and i + 3.
  const auto turn = [&](const at::Tensor& head) {
    std::vector<at::Tensor> real, imaginary;
    for (std::int64_t pair = 0; pair < kDim / 2; ++pair) {
      const auto a = head.select(-1, pair), b = head.select(-1, pair + kDim / 2);
      const auto cos = angles[static_cast<std::size_t>(pair)].cos(), sin = angles[static_cast<std::size_t>(pair)].sin();
      real.push_back((a * cos - b * sin).unsqueeze(-1));
      imaginary.push_back((b * cos + a * sin).unsqueeze(-1));
    }
    real.insert(real.end(), imaginary.begin(), imaginary.end());
    return at::cat(real, -1);
  };
  const at::Tensor distance = places.unsqueeze(1) - places.unsqueeze(0);
  const at::Tensor hidden_keys = distance.lt(0).logical_or(distance.ge(static_cast<double>(window)));
  at::Tensor h = p("model.embed_tokens.weight").index_select(0, batch.tensors.at("input_ids").flatten());
  h = h.view({-1, kTokens, 24});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    const at::Tensor x = norm(h, layer + ".input_layernorm");
    const at::Tensor q = linear(x, layer + ".self_attn.q_proj"), k = linear(x, layer + ".self_attn.k_proj"),
                     v = linear(x, layer + ".self_attn.v_proj");
    std::vector<at::Tensor> mixed;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t group = head / (kHeads / kGroups);
      const at::Tensor scores =
          turn(q.narrow(-1, head * kDim, kDim)).matmul(turn(k.narrow(-1, group * kDim, kDim)).transpose(1, 2));
      const at::Tensor weights = (scores / std::sqrt(6.0)).masked_fill(hidden_keys, -INFINITY).softmax(-1);
      mixed.push_back(weights.matmul(v.narrow(-1, group * kDim, kDim)));
    }
    h = h + linear(at::cat(mixed, -1), layer + ".self_attn.o_proj");
    const at::Tensor y = norm(h, layer + ".post_attention_layernorm");
    const at::Tensor gate = linear(y, layer + ".mlp.gate_proj");
    h = h + linear(gate * gate.sigmoid() * linear(y, layer + ".mlp.up_proj"), layer + ".mlp.down_proj");
  }
  const at::Tensor logits = linear(norm(h, "model.norm"), "lm_head").log_softmax(-1);
  return -logits.gather(-1, batch.tensors.at("labels").unsqueeze(-1)).mean().item<double>();
}

TEST(Decoder, ComputesItsDefinition) {
  const Batch batch = batch_of(2, 12);
  const Model llama = filled(decoder("llama", R"({"rope_theta": 300})"));
  const Model mistral = filled(decoder("mistral", R"({"rope_theta": 300, "sliding_window": 5})"));

  EXPECT_NEAR(loss_of(llama), llama_loss(llama, batch, 300, 100), 1e-5);
  EXPECT_NEAR(loss_of(mistral), llama_loss(mistral, batch, 300, 5), 1e-5);
  EXPECT_GT(std::abs(loss_of(mistral) - llama_loss(mistral, batch, 300, 6)), 1e-4);
}

TEST(Decoder, WindowsThatHoldTheWholeSequenceChangeNothing) {
  const auto loss = [](const char* window) {
    return loss_of(filled(decoder("mistral", std::string(R"({"sliding_window": )") + window + "}")));
  };
  // Twelve tokens: from 12 down a mask takes the place of causal attention.
  EXPECT_EQ(loss("null"), loss("13"));
  EXPECT_NEAR(loss("null"), loss("12"), 1e-6);
  EXPECT_GT(std::abs(loss("null") - loss("11")), 1e-5);
  EXPECT_EQ(loss("4096"), loss_of(filled(decoder("mistral"))));
}

TEST(Decoder, TiesItsHeadToTheEmbeddings) {
  Model tied = decoder("llama", R"({"tie_word_embeddings": true})");
  EXPECT_THAT(shapes_of(tied), Not(Contains(Key("lm_head.weight"))));
  EXPECT_THAT(shapes_of(decoder("llama")), Contains(Key("lm_head.weight")));
  for (const char* type : {"gemma", "gemma2", "gemma3_text", "smollm3"}) {
    EXPECT_THAT(shapes_of(decoder(type)), Not(Contains(Key("lm_head.weight")))) << type;
  }

  Batch batch = batch_of(1, 12);
  tied.forward(batch).backward();
  // No text of this batch has token 48, whose row learns as a row of the head alone.
  EXPECT_GT(parameter(tied, "model.embed_tokens.weight").grad()[48].abs().sum().item<double>(), 0);
}

TEST(Decoder, GivesThePaddingNoGradient) {
  for (const char* padding : {"3", "null"}) {
    Model model = decoder("llama", std::string(R"({"pad_token_id": )") + padding + "}");
    Batch batch = batch_of(1, 12);  // begins with token 3
    model.forward(batch).backward();
    const double gradient = parameter(model, "model.embed_tokens.weight").grad()[3].abs().sum().item<double>();
    EXPECT_EQ(gradient == 0, padding == std::string("3"));
  }
}

TEST(Decoder, DrawsTheInitialWeightsOfTransformersFromTheRunsSeed) {
  const std::string more =
      R"({"hidden_size": 96, "intermediate_size": 400, "initializer_range": 0.05, "pad_token_id": 9,
                               "attention_bias": true})";
  at::manual_seed(11);
  const Model first = decoder("llama", more), second = decoder("llama", more);
  at::manual_seed(11);
  const Model again = decoder("llama", more);
  const auto value = [&](const std::string& name) { return parameter(first, name); };

  EXPECT_TRUE(value("lm_head.weight").equal(parameter(again, "lm_head.weight")));
  EXPECT_FALSE(value("lm_head.weight").equal(parameter(second, "lm_head.weight")));
  EXPECT_NEAR(value("model.layers.1.mlp.down_proj.weight").std().item<double>(), 0.05, 0.001);
  EXPECT_NEAR(value("lm_head.weight").std().item<double>(), 0.05, 0.002);
  EXPECT_EQ(value("model.embed_tokens.weight")[9].abs().max().item<double>(), 0);
  EXPECT_GT(value("model.embed_tokens.weight")[8].abs().max().item<double>(), 0);
  EXPECT_EQ(value("model.layers.0.self_attn.q_proj.bias").abs().max().item<double>(), 0);
  EXPECT_EQ(value("model.norm.weight").min().item<double>(), 1);
  EXPECT_EQ(parameter(decoder("gemma"), "model.norm.weight").abs().max().item<double>(), 0);
}

TEST(Decoder, RunsEachBlockAsALayer) {
  Model model = decoder("llama");
  Batch batch = batch_of(1, 8);
  testing::TestLayers layers;
  batch.layers = &layers;

  model.forward(batch);

  EXPECT_THAT(layers.seen, ElementsAre("model.layers.0", "model.layers.1"));
}

/// The loss where a component gives all layers other positions, as one does that drops tokens.
double loss_at(Model& model, const at::Tensor& positions) {
  Batch batch = batch_of(1, 12);
  testing::TestLayers layers;
  layers.wrap = [&](const capstan_layer_call& call, const capstan_inner& inner) {
    const capstan_argument given{sizeof(capstan_argument), as_str("position_ids"),
                                 reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&positions))};
    const capstan_argument* const arguments[] = {&given};
    capstan_layer_call changed = call;
    changed.arguments = arguments;
    changed.argument_count = 1;
    return testing::TestLayers::run_inner(changed, inner, call.hidden);
  };
  batch.layers = &layers;
  return model.forward(batch).item<double>();
}

TEST(Decoder, TurnsTokensByThePositionsThatAComponentGives) {
  Model model = filled(decoder("mistral", R"({"sliding_window": 5})"));
  const at::Tensor places = at::arange(12, at::kLong).unsqueeze(0);

  // Rotary embeddings, and windows, see distances alone.
  EXPECT_NEAR(loss_at(model, places + 7), loss_at(model, places), 1e-5);
  EXPECT_GT(std::abs(loss_at(model, places * 2) - loss_at(model, places)), 1e-4);
}

TEST(Decoder, RunsInBf16WithALossInFp32) {
  Model model = filled(decoder("gemma3_text", R"({"sliding_window": 4})"));
  const double exact = loss_of(model);
  for (const NamedTensor& one : model.parameters()) one.tensor.set_data(one.tensor.data().to(at::kBFloat16));
  Batch batch = batch_of(2, 12);

  const at::Tensor loss = model.forward(batch);
  loss.backward();

  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), exact, 0.05 * exact);
  EXPECT_EQ(parameter(model, "model.norm.weight").grad().scalar_type(), at::kBFloat16);
  EXPECT_THAT(model.buffers(), ::testing::IsEmpty());
}

/// The logits behind `ids` that come in `calls` calls.
at::Tensor decoded(const Model& model, const at::Tensor& ids, std::int64_t calls) {
  const at::NoGradGuard no_grad;
  Decoding decoding(model.decode_functions(), ids.size(0), ids.size(1));
  at::Tensor logits;
  for (std::int64_t call = 0; call < calls; ++call) {
    const std::int64_t from = ids.size(1) * call / calls, to = ids.size(1) * (call + 1) / calls;
    logits = decoding.logits(ids.narrow(1, from, to - from));
  }
  return logits;
}

TEST(Decoder, ContinuesSequencesAsItComputesThemWhole) {
  const std::map<std::string, std::string> models = {
      {"gemma", "{}"},
      {"gemma2", R"({"sliding_window": 4})"},
      {"gemma3_text", R"({"sliding_window": 4, "sliding_window_pattern": 2})"},
      {"granite", R"({"logits_scaling": 3.0, "residual_multiplier": 0.5})"},
      {"llama", R"({"tie_word_embeddings": true})"},
      {"mistral", R"({"sliding_window": 5})"},
      {"olmo", R"({"clip_qkv": 0.4})"},
      {"olmo2", "{}"},
      {"phi3", R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 2], "long_factor": [2, 3, 4]},
                   "original_max_position_embeddings": 8})"},
      {"qwen2", R"({"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1})"},
      {"qwen3", "{}"},
      {"smollm3", R"({"no_rope_layer_interval": 2})"},
      {"stablelm", R"({"head_dim": 8})"}};
  for (const auto& [type, more] : models) {
    SCOPED_TRACE(type);
    Model model = filled(decoder(type, more));
    Batch batch = batch_of(2, 12);
    const at::Tensor ids = batch.tensors.at("input_ids"), last = batch.tensors.at("labels").select(1, 11).clone();
    batch.tensors.at("labels").narrow(1, 0, 11).fill_(-100);

    const double loss = model.forward(batch).item<double>();

    for (const std::int64_t calls : {1, 2, 5, 12}) {
      const at::Tensor logits = decoded(model, ids, calls);
      EXPECT_EQ(logits.sizes().vec(), (Shape{2, 50}));
      const at::Tensor likelihood = logits.log_softmax(-1).gather(1, last.unsqueeze(1)).mean();
      EXPECT_NEAR(-likelihood.item<double>(), loss, 1e-5) << calls;
    }
  }
}

/// Rows of one call: the given tokens of each, -1 behind those of a shorter one.
at::Tensor rows_of(const std::vector<at::Tensor>& rows) {
  std::int64_t longest = 0;
  for (const at::Tensor& row : rows) longest = std::max(longest, row.size(0));
  const at::Tensor ids = at::full({static_cast<std::int64_t>(rows.size()), longest}, -1, at::kLong);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ids.select(0, static_cast<std::int64_t>(i)).narrow(0, 0, rows[i].size(0)).copy_(rows[i]);
  }
  return ids;
}

TEST(Decoder, ContinuesSequencesOfDifferentLengthsAsEachAlone) {
  const std::map<std::string, std::string> models = {
      {"gemma2", R"({"sliding_window": 4})"},
      {"gemma3_text", R"({"sliding_window": 4, "sliding_window_pattern": 2})"},
      {"llama", R"({"attention_bias": true, "mlp_bias": true})"},
      {"mistral", R"({"sliding_window": 5})"},
      {"phi3", "{}"},
      {"smollm3", R"({"no_rope_layer_interval": 2})"}};
  const std::vector<std::int64_t> prompts = {2, 7, 4};
  constexpr std::int64_t kSteps = 4, kCapacity = 12;
  const at::NoGradGuard no_grad;
  for (const auto& [type, more] : models) {
    SCOPED_TRACE(type);
    const Model model = filled(decoder(type, more));
    EXPECT_TRUE(Decoding::takes_short_rows(model));
    const at::Tensor text = batch_of(3, 12).tensors.at("input_ids");
    const auto tokens = [&](std::size_t row, std::int64_t from, std::int64_t count) {
      return text.select(0, static_cast<std::int64_t>(row)).narrow(0, from, count);
    };
    std::vector<std::vector<at::Tensor>> alone(prompts.size());
    for (std::size_t row = 0; row < prompts.size(); ++row) {
      Decoding decoding(model.decode_functions(), 1, kCapacity);
      alone[row].push_back(decoding.logits(tokens(row, 0, prompts[row]).unsqueeze(0)));
      for (std::int64_t step = 0; step < kSteps; ++step) {
        alone[row].push_back(decoding.logits(tokens(row, prompts[row] + step, 1).unsqueeze(0)));
      }
    }

    Decoding decoding(model.decode_functions(), 3, kCapacity);
    // Two prompts at once, then one; the middle row ends after two steps.
    const at::Tensor first = decoding.logits_of_rows(rows_of({tokens(0, 0, 2), tokens(1, 0, 7), tokens(2, 0, 0)}), 2);
    EXPECT_TRUE(first.select(0, 0).equal(alone[0][0][0]));
    EXPECT_TRUE(first.select(0, 1).equal(alone[1][0][0]));
    const at::Tensor second = decoding.logits_of_rows(rows_of({tokens(0, 0, 0), tokens(1, 0, 0), tokens(2, 0, 4)}), 1);
    EXPECT_TRUE(second.equal(alone[2][0]));
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const std::int64_t middle = step < 2 ? 1 : 0;
      const at::Tensor logits = decoding.logits_of_rows(
          rows_of({tokens(0, 2 + step, 1), tokens(1, 7 + step, middle), tokens(2, 4 + step, 1)}), 2 + middle);
      const auto at_step = static_cast<std::size_t>(step + 1);
      EXPECT_TRUE(logits.select(0, 0).equal(alone[0][at_step][0])) << step;
      if (middle > 0) {
        EXPECT_TRUE(logits.select(0, 1).equal(alone[1][at_step][0])) << step;
      }
      EXPECT_TRUE(logits.select(0, 1 + middle).equal(alone[2][at_step][0])) << step;
    }
  }
}

TEST(Decoder, TakesSequencesOfOneLengthWhereFrequenciesDependOnIt) {
  EXPECT_FALSE(Decoding::takes_short_rows(
      decoder("phi3", R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 2], "long_factor": [2, 3, 4]},
                          "original_max_position_embeddings": 8})")));
}

TEST(Decoder, NamesWhatItCannotContinue) {
  const Model model = decoder("llama");
  Decoding decoding(model.decode_functions(), 2, 5);
  const at::Tensor ids = batch_of(2, 70).tensors.at("input_ids");

  EXPECT_THAT([&] { decoding.logits(ids.narrow(1, 0, 6)); },
              ThrowsMessage<PluginError>("model 'decoder', decode: ids: 6 tokens with those before, and there is room "
                                         "for 5."));
  EXPECT_THAT([&] { decoding.logits(ids.select(0, 0)); },
              ThrowsMessage<PluginError>("model 'decoder', decode: ids: got a Long tensor of shape [70]. They must be "
                                         "int64 [2, tokens] and not empty."));
  EXPECT_THAT(
      [&] {
        decoding.logits(at::full({2, 3}, -1, at::kLong));
      },
      ThrowsMessage<PluginError>("model 'decoder', decode: ids: has -1 in place of every token."));
  const at::Tensor broken = ids.narrow(1, 0, 3).clone();
  broken[1][0] = -1;
  EXPECT_THAT([&] { decoding.logits(broken); },
              ThrowsMessage<PluginError>("model 'decoder', decode: ids: row 1 has a token behind -1, which ends a "
                                         "row."));
  Decoding too_long(model.decode_functions(), 2, 70);
  EXPECT_THAT(
      [&] { too_long.logits(ids.narrow(1, 0, 6)); },
      ThrowsMessage<PluginError>(
          "model 'decoder', decode: 70 tokens, and this model has 64 positions. Shorten the sequences, or raise "
          "the model's parameter 'config.max_position_embeddings'."));
  EXPECT_THAT(
      [] {
        testing::built_model("mlp", Json::parse(R"({"context": 3, "d": 5, "hidden": 7, "layers": 2, "seq": 32,
      "vocab": 128})"))
            .decode_functions();
      },
      ThrowsMessage<ConfigError>(
          "capstan.model: model 'mlp' cannot continue a text: it has no function decode. Use a model that "
          "has one, or give its module decode(ids, cache)."));
}

TEST(Decoder, DescribesItself) {
  Json facts =
      decoder("phi3", R"({"max_position_embeddings": 4096, "num_key_value_heads": 4, "my_key": [1, null]})").describe();
  const Json hf = facts.at("hf");
  facts.erase("hf");

  EXPECT_EQ(facts,
            Json::parse(R"({"sequence_length": 2048, "hidden_size": 24, "vocab_size": 50, "layers": 2, "heads": 4,
    "positions": 4096, "ragged_decode": true, "reads": ["document_ids", "position_ids"],
    "fused": {"model.layers.0.mlp.gate_up_proj": 2, "model.layers.0.self_attn.qkv_proj": 3,
              "model.layers.1.mlp.gate_up_proj": 2, "model.layers.1.self_attn.qkv_proj": 3}})"));
  EXPECT_EQ(hf.at("config").at("my_key"), Json::parse("[1, null]"));
  EXPECT_EQ(hf.at("tensors").as_array().front(), Json::parse(R"({"parameter": "model.embed_tokens.weight",
    "name": "model.embed_tokens.weight"})"));
}

/// A config.json that is refused, and the key and sentence that say so.
struct Mistake {
  std::string type, more, text;
};

TEST(Decoder, NamesTheKeyThatItCannotCompute) {
  const std::string rope = "rope_parameters.";
  const std::vector<Mistake> mistakes = {
      {"bert", "{}",
       "model_type: 'bert' is not known. Known are gemma, gemma2, gemma3_text, granite, llama, mistral, olmo, olmo2, "
       "phi3, qwen2, qwen3, smollm3, stablelm."},
      {"llama", R"({"model_type": null})", "model_type: is missing. Known are gemma,"},
      {"llama", R"({"hidden_size": null})", "hidden_size: is missing. A config.json of transformers has it."},
      {"llama", R"({"hidden_size": "24"})", "hidden_size: must be a number, got 24."},
      {"llama", R"({"vocab_size": 0})", "vocab_size: must be a whole number from 1 to 2147483647, got 0."},
      {"llama", R"({"vocab_size": 1e300})", "vocab_size: must be a whole number from 1 to 2147483647, got 1e+300."},
      {"llama", R"({"intermediate_size": 2.5})",
       "intermediate_size: must be a whole number from 1 to 2147483647, got 2.5."},
      {"llama", R"({"num_hidden_layers": 10001})", "num_hidden_layers: must be at most 10000, got 10001."},
      {"llama", R"({"num_key_value_heads": 3})", "num_key_value_heads: 3 does not divide num_attention_heads, 4."},
      {"llama", R"({"head_dim": null, "hidden_size": 25})",
       "num_attention_heads: 4 does not divide hidden_size, 25, and head_dim is not given."},
      {"llama", R"({"rms_norm_eps": -1})", "rms_norm_eps: must be above 0, got -1."},
      {"llama", R"({"attention_bias": "yes"})", "attention_bias: must be true or false, got yes."},
      {"llama", R"({"pad_token_id": 50})", "pad_token_id: must be null or an id of the vocabulary, 0 to 49, got 50."},
      {"llama", R"({"hidden_act": "relu6"})",
       "hidden_act: 'relu6' is not known. Known are silu, gelu and gelu_pytorch_tanh."},
      {"llama", R"({"num_local_experts": 8})",
       "num_local_experts: is given: the model is a mixture of experts, and this plugin has none."},
      {"llama", R"({"quantization_config": {"bits": 4}})",
       "quantization_config: is given: the weights are quantised. Use a folder of the model in fp32, bf16 or fp16."},
      {"llama", R"({"attention_dropout": 0.1})", "attention_dropout: must be 0: this plugin computes without dropout."},
      {"llama", R"({"rope_scaling": "linear"})", "rope_scaling: must be an object, got linear."},
      {"llama", R"({"rope_parameters": {"rope_type": "proportional"}})",
       rope + "rope_type: 'proportional' is not known. Known are default, dynamic, linear, llama3, longrope and yarn."},
      {"llama", R"({"rope_parameters": {"rope_type": "yarn"}})",
       rope + "factor: is missing. A config.json of transformers has it."},
      {"llama", R"({"rope_parameters": {"rope_type": "linear", "factor": 0}})",
       rope + "factor: must be above 0, got 0."},
      {"llama",
       R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       rope + "high_freq_factor: must be above low_freq_factor."},
      {"llama", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       rope + "full_attention: is given, and llama has one rope_type."},
      {"llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: must be 1: llama turns whole heads."},
      {"llama", R"({"rope_parameters": {"rope_type": "dynamic", "factor": 2}, "head_dim": 2})",
       rope + "rope_type: dynamic needs heads of more than 2 dimensions that turn."},
      {"phi3", R"({"rope_parameters": {"rope_type": "linear", "factor": 2}})",
       rope + "rope_type: 'linear' is not known of phi3. Known are default and longrope."},
      {"phi3", R"({"rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [1, 1]}})",
       "rope_scaling.short_factor: must be a list of 3 numbers, one for each pair of dimensions that turns; it has 2."},
      {"phi3", R"({"rope_scaling": {"type": "longrope", "short_factor": [1, "a", 1]}})",
       R"(rope_scaling.short_factor: must be a list of numbers, got [1,"a",1].)"},
      {"stablelm", R"({"partial_rotary_factor": 0.2})",
       "partial_rotary_factor: 1 of a head's 6 dimensions turn by it. Their number must be even, and at least 2."},
      {"stablelm", R"({"head_dim": 8, "use_parallel_residual": true})",
       "use_parallel_residual: is true, and this plugin computes stablelm without it."},
      {"gemma2", R"({"layer_types": ["full_attention"]})", "layer_types: has 1 entries, and num_hidden_layers is 2."},
      {"gemma2", R"({"layer_types": ["full_attention", "chunked_attention"]})",
       "layer_types: has 'chunked_attention'. Known are full_attention and sliding_attention."},
      {"qwen2", R"({"layer_types": ["full_attention", "sliding_attention"]})",
       "layer_types: has sliding_attention, and the model has no sliding_window."},
      {"gemma3_text", R"({"attn_logit_softcapping": 50.0})",
       "attn_logit_softcapping: is given, and attention of gemma3_text has no such cap. Remove it."},
      {"gemma", R"({"use_bidirectional_attention": true})",
       "use_bidirectional_attention: is true, and this model attends to earlier tokens alone."},
      {"smollm3", R"({"no_rope_layers": [1]})", "no_rope_layers: has 1 entries, and num_hidden_layers is 2."},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT([&] { decoder(mistake.type, mistake.more); },
                ThrowsMessage<ConfigError>(HasSubstr("capstan.model.params.config." + mistake.text)))
        << mistake.type << " " << mistake.more;
  }
}

TEST(Decoder, NamesTheKeysThatBoundItsTokens) {
  Model model = decoder("llama");
  Batch long_one = batch_of(1, 65), strange = batch_of(1, 4);
  strange.tensors["input_ids"][0][2] = 50;

  EXPECT_THAT([&] { model.forward(long_one); },
              ThrowsMessage<PluginError>(HasSubstr("65 positions, this model has 64. Shorten the sequences, or raise "
                                                   "the model's parameter 'config.max_position_embeddings'.")));
  EXPECT_THAT([&] { model.check(strange); },
              ThrowsMessage<PluginError>(HasSubstr("holds id 50, this model's vocabulary is 0 to 49. Raise the model's "
                                                   "parameter 'config.vocab_size', or use data of that vocabulary.")));
}

}  // namespace
}  // namespace capstan
