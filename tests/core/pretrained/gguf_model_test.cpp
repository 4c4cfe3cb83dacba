#include "core/pretrained/gguf_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "core/pretrained/rotary_scaling.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using test::small_llama;
using ::testing::HasSubstr;

Json config_of(const GgufBytes& file) {
  const std::string bytes = file.bytes();
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return config_of_gguf(parse_gguf(begin, bytes.size(), "'f.gguf'"), {&begin, 1}, "'f.gguf'");
}

template <class Do>
std::string failure(const Do& run) {
  try {
    run();
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "accepted";
}

std::string refusal(const GgufBytes& file) {
  return failure([&] { config_of(file); });
}

Json llama_config() {
  return Json::parse(R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 4,
    "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": [2, 3]})");
}

TEST(GgufModel, BecomesTheConfigurationOfTransformers) {
  const Json config = config_of(small_llama().count("tokenizer.ggml.eos_token_id", 2));
  EXPECT_EQ(config, Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_size": 8, "intermediate_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 4, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
    "rope_theta": 10000.0, "rope_scaling": null, "eos_token_id": 2})"))
      << config.dump(1);
}

TEST(GgufModel, TellsAHeadOfItsOwnAndBiasesByTheTensorsThatAreThere) {
  GgufBytes file = small_llama();
  file.tensor("output.weight", 0, {4, 8}, std::string(128, '\0'))
      .tensor("blk.0.attn_q.bias", 0, {8}, std::string(32, '\0'));
  const Json config = config_of(file);
  EXPECT_EQ(config.at("tie_word_embeddings"), Json(false));
  EXPECT_EQ(config.at("attention_bias"), Json(true));
  EXPECT_EQ(config.at("mlp_bias"), Json(false));
}

TEST(GgufModel, RefusesWhatItDoesNotKnowByName) {
  EXPECT_THAT(
      refusal(small_llama("mamba")),
      HasSubstr("'f.gguf': its architecture is 'mamba', and these are known: llama, qwen2, qwen3, gemma, gemma2, "
                "gemma3, phi3, olmo, olmo2, stablelm, granite, smollm3."));
  EXPECT_THAT(refusal(small_llama().count("llama.expert_count", 8)),
              HasSubstr("it is a mixture of experts (llama.expert_count)"));
  EXPECT_THAT(refusal(small_llama().words("llama.rope.scaling.type", "yarn")),
              HasSubstr("its llama.rope.scaling.type is 'yarn', and 'none' and 'linear' are known here."));
  EXPECT_THAT(refusal(small_llama().count("llama.rope.dimension_count", 2)),
              HasSubstr("it rotates a part of each head"));
  EXPECT_THAT(refusal(small_llama().tensor("rope_freqs.weight", 0, {2}, GgufBytes::floats({3, 7.5F}))),
              HasSubstr("its tensor rope_freqs.weight is not the scaling of rotary positions of Llama 3"));
  EXPECT_THAT(refusal(small_llama().tensor("rope_freqs.weight", 0, {3}, GgufBytes::floats({1, 1, 1}))),
              HasSubstr("does not hold 2 numbers of type F32."));
  EXPECT_THAT(refusal(GgufBytes().words("general.architecture", "llama").count("llama.block_count", 1)),
              HasSubstr("its metadata has no llama.context_length, which the model needs."));
  EXPECT_THAT(refusal(GgufBytes().count("k", 1)), HasSubstr("its metadata has no general.architecture"));
  EXPECT_THAT(refusal(small_llama().number("llama.attention.key_length", 4)),
              HasSubstr("its metadata key llama.attention.key_length is not one positive whole number."));
}

TEST(GgufModel, ComesBackFromItsMetadata) {
  const Json metadata = gguf_metadata(llama_config());
  EXPECT_EQ(metadata.at("general.architecture"), Json("llama"));
  EXPECT_EQ(metadata.at("llama.attention.head_count_kv"), Json(2));
  EXPECT_EQ(metadata.at("llama.rope.dimension_count"), Json(2));
  EXPECT_EQ(metadata.at("llama.rope.freq_base"), Json(10000.0));
  EXPECT_EQ(metadata.at("tokenizer.ggml.bos_token_id"), Json(1));
  EXPECT_EQ(metadata.at("tokenizer.ggml.eos_token_id"), Json(2));
}

TEST(GgufModel, IsNotWrittenWhereLlamaCppWouldComputeSomethingElse) {
  const auto refused = [](const char* key, const char* value) {
    return failure([&] {
      Json config = llama_config();
      config[key] = Json::parse(value);
      gguf_metadata(config);
    });
  };
  EXPECT_THAT(
      refused("model_type", "\"bert\""),
      HasSubstr(
          "the model's config.json: model_type is 'bert', and a GGUF file is written of llama, qwen2, qwen3, gemma, "
          "gemma2, gemma3, phi3, olmo, olmo2, stablelm, granite, smollm3 and mistral. Use --to hf or safetensors."));
  EXPECT_THAT(refused("hidden_act", "\"gelu\""), HasSubstr("hidden_act is 'gelu', and llama.cpp computes 'silu'"));
  EXPECT_THAT(refused("rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})"),
              HasSubstr("rope_scaling scales rotary positions as 'yarn'"));
  EXPECT_THAT(refused("rope_parameters", R"({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})"),
              HasSubstr("as 'dynamic'"));
  EXPECT_THAT(refused("num_hidden_layers", "null"),
              HasSubstr("num_hidden_layers is missing, and a GGUF file needs it."));
  EXPECT_THAT(refused("vocab_size", "-4"), HasSubstr("vocab_size must be a positive whole number, got -4."));
}

TEST(GgufModel, OfEachArchitectureComesBackFromItsMetadata) {
  // Keys of config.json beside those of llama_config(), in the dialect of transformers 4.
  const std::pair<const char*, const char*> cases[] = {
      {"gemma", R"({"head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": true})"},
      {"gemma2", R"({"head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0, "sliding_window": 16,
        "query_pre_attn_scalar": 4, "tie_word_embeddings": true})"},
      {"gemma3_text", R"({"head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "final_logit_softcapping": 10.0,
        "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 4,
        "rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"},
      {"olmo", R"({"clip_qkv": 8.0, "rms_norm_eps": null})"},
      {"olmo2", "{}"},
      {"stablelm", R"({"layer_norm_eps": 1e-4, "partial_rotary_factor": 0.5, "hidden_size": 16, "rms_norm_eps": null,
        "use_qkv_bias": false, "qk_layernorm": false, "use_parallel_residual": false})"},
      {"granite", R"({"attention_multiplier": 0.25, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "logits_scaling": 4.0})"},
      {"smollm3", R"({"no_rope_layers": [1, 1]})"}};
  for (const auto& [type, more] : cases) {
    Json config = llama_config();
    config["model_type"] = type;
    const Json keys = Json::parse(more);
    for (const auto& [key, value] : keys.as_object()) config[key] = value;
    const Json metadata = gguf_metadata(config);
    GgufBytes file;
    for (const auto& [key, value] : metadata.as_object()) {
      if (value.is_string()) {
        file.words(key, value.as_string());
      } else if (value.is_bool()) {
        file.add(key, 7, std::string(1, value.as_bool() ? '\1' : '\0'));
      } else if (value.is_integer()) {
        file.count(key, static_cast<std::uint32_t>(value.as_integer()));
      } else {
        file.number(key, static_cast<float>(value.as_number()));
      }
    }
    file.tensor("token_embd.weight", 0, {4, 8}, std::string(128, '\0'));
    if (std::string(type) == "stablelm") file.tensor("blk.0.ffn_norm.weight", 0, {8}, std::string(32, '\0'));
    const Json back = config_of(file);
    EXPECT_EQ(back.at("model_type"), Json(type));
    for (const auto& [key, value] : keys.as_object()) {
      // A null is not there, and llama.cpp fixes the layers that rotate.
      if (value.is_null() || key == "no_rope_layers") continue;
      EXPECT_EQ(back.at(key), value) << type << ": " << key << back.dump(1);
    }
  }
}

TEST(GgufModel, OfAnArchitectureIsNotWrittenWhereLlamaCppWouldComputeSomethingElse) {
  const auto refused = [](const char* type, const char* key, const char* value) {
    return failure([&] {
      Json config = llama_config();
      config["model_type"] = type;
      if (std::string(type).starts_with("gemma")) config["hidden_act"] = "gelu_pytorch_tanh";
      config[key] = Json::parse(value);
      gguf_metadata(config);
    });
  };
  EXPECT_THAT(refused("gemma", "tie_word_embeddings", "false"),
              HasSubstr("tie_word_embeddings is false, and llama.cpp ties the embeddings of this model type."));
  EXPECT_THAT(refused("olmo2", "tie_word_embeddings", "true"),
              HasSubstr("tie_word_embeddings is true, and llama.cpp needs a weight lm_head for this model type."));
  EXPECT_THAT(refused("olmo2", "attention_bias", "true"),
              HasSubstr("attention_bias is true, and llama.cpp has no such bias for this model type."));
  EXPECT_THAT(refused("stablelm", "use_parallel_residual", "true"),
              HasSubstr("use_parallel_residual is true, which is not known here."));
  EXPECT_THAT(
      refused("smollm3", "no_rope_layers", "[1, 0]"),
      HasSubstr("no_rope_layers differs from llama.cpp's, which rotates all but every fourth layer, in layer 1."));
  EXPECT_THAT(refused("smollm3", "no_rope_layer_interval", "3"),
              HasSubstr("no_rope_layer_interval is not 4, as llama.cpp has it."));
  EXPECT_THAT(refused("gemma3_text", "query_pre_attn_scalar", "99"), HasSubstr("query_pre_attn_scalar is not 256"));
}

TEST(GgufModel, HasAPlaceForEachWeightByItsName) {
  const Json config = llama_config();
  const auto place = [&](const char* name) { return gguf_place(config, name); };
  EXPECT_EQ(place("model.embed_tokens.weight")->name, "token_embd.weight");
  EXPECT_EQ(place("lm_head.weight")->name, "output.weight");
  EXPECT_EQ(place("model.layers.11.post_attention_layernorm.weight")->name, "blk.11.ffn_norm.weight");
  EXPECT_EQ(place("model.layers.1.self_attn.q_proj.weight")->name, "blk.1.attn_q.weight");
  EXPECT_EQ(place("model.layers.1.self_attn.q_proj.weight")->rotary_heads, 4);
  EXPECT_EQ(place("model.layers.1.self_attn.k_proj.bias")->rotary_heads, 2);
  EXPECT_EQ(place("model.layers.1.self_attn.v_proj.weight")->rotary_heads, 0);
  for (const char* unknown :
       {"model.layers.x.mlp.up_proj.weight", "model.layers.1.mlp", "model.layers..mlp.up_proj.weight",
        "model.layers.1.mlp.experts.weight", "head.weight", "weight", ""}) {
    EXPECT_FALSE(place(unknown)) << unknown;
  }
  Json gemma2 = config;
  gemma2["model_type"] = "gemma2";
  EXPECT_EQ(gguf_place(gemma2, "model.layers.0.post_attention_layernorm.weight")->name,
            "blk.0.post_attention_norm.weight");
  EXPECT_TRUE(gguf_place(gemma2, "model.norm.weight")->plus_one);
  EXPECT_FALSE(gguf_place(gemma2, "model.layers.0.self_attn.q_proj.weight")->plus_one);
  EXPECT_EQ(gguf_place(gemma2, "model.layers.0.self_attn.q_proj.weight")->rotary_heads, 0);
}

TEST(RotaryScaling, OfLlama3IsReadFromItsDivisors) {
  // Wavelengths 2 pi 500000^(2i/128) in three ranges: below 8192 / 4, above 8192 / 1, and between.
  const std::vector<float> divisors = llama3_divisors({.factor = 8, .original_length = 8192}, 500000, 128);
  ASSERT_EQ(divisors.size(), 64u);
  EXPECT_EQ(divisors[0], 1);
  EXPECT_EQ(divisors[27], 1);  // wavelength 1,594
  EXPECT_EQ(divisors[63], 8);  // wavelength 2.6 million
  // i = 31: wavelength 3619.25, smooth = (8192 / 3619.25 - 1) / 3, divisor 1 / ((1 - smooth) / 8 + smooth)
  EXPECT_NEAR(divisors[31], 1 / ((1 - 0.421151) / 8 + 0.421151), 1e-5);
  const auto scaling = llama3_scaling(divisors, 500000);
  ASSERT_TRUE(scaling);
  EXPECT_EQ(scaling->factor, 8);
  EXPECT_EQ(scaling->original_length, 8192);
  EXPECT_FALSE(llama3_scaling(divisors, 10000));
  EXPECT_FALSE(llama3_scaling({}, 10000));
}

TEST(RotaryScaling, IsReadInBothDialects) {
  const RotaryKeys four =
      rotary_keys(Json::parse(R"({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}})"));
  EXPECT_EQ(four.type, "linear");
  EXPECT_EQ(four.theta, 5e5);
  EXPECT_EQ(four.factor, 2);
  const RotaryKeys five =
      rotary_keys(Json::parse(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})"));
  EXPECT_EQ(five.type, "default");
  EXPECT_EQ(five.theta, 1e6);
  const RotaryKeys both = rotary_keys(Json::parse(
      R"({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 4}})"));
  EXPECT_EQ(both.type, "linear");
  EXPECT_EQ(both.factor, 4);
  EXPECT_EQ(rotary_keys(Json::parse(R"({"partial_rotary_factor": 0.5})")).partial_rotary_factor, 0.5);
  EXPECT_EQ(rotary_keys(Json::parse(R"({"rope_parameters": {"partial_rotary_factor": 0.25}})")).partial_rotary_factor,
            0.25);
  EXPECT_THAT(failure([] { rotary_keys(Json::parse(R"({"rope_theta": "x"})")); }),
              HasSubstr("rope_theta must be a positive number, got \"x\"."));
}

}  // namespace
}  // namespace capstan
