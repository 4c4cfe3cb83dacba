#include "core/checkpoint/gguf_tensors.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Half.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/gguf_writer.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/compression/coded_rows.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using test::small_llama;
using test::TemporaryFolder;
using testing::HasSubstr;

constexpr std::uint32_t kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30;

/// Bytes that differ from one another, as codes.
std::string codes(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 37 + 11);
  return bytes;
}

std::string half(float value) { return GgufBytes::raw(c10::Half(value).x); }

class GgufTensors : public testing::Test {
 protected:
  std::map<std::string, SafetensorsEntry> read(const GgufBytes& file, const std::vector<std::string>& names) const {
    folder_.write("m.gguf", file.bytes());
    return GgufWeights(folder_ / "m.gguf").read(names);
  }
  static at::Tensor all(const SafetensorsEntry& entry) {
    if (!entry.read) return entry.values.to(at::kFloat);
    return entry.read(0, entry.values.numel()).clone().view(entry.values.sizes());
  }

  TemporaryFolder folder_;
};

TEST_F(GgufTensors, OfPackedTypesAreWhatTheFormulasSay) {
  // One tensor of two blocks each, under names that stay as they are.
  const std::string packed4 = codes(16), packed8 = codes(32);
  GgufBytes file = small_llama();
  file.tensor("q8", kQ8_0, {1, 64}, half(0.5F) + packed8 + half(-2) + packed8)
      .tensor("q40", kQ4_0, {1, 64}, half(0.25F) + packed4 + half(3) + packed4)
      .tensor("q41", kQ4_1, {1, 64}, half(0.25F) + half(-1) + packed4 + half(3) + half(7) + packed4);
  const auto found = read(file, {});
  const at::Tensor q8 = all(found.at("q8")), q40 = all(found.at("q40")), q41 = all(found.at("q41"));
  for (int block = 0; block < 2; ++block) {
    for (int i = 0; i < 32; ++i) {
      const float d8 = block == 0 ? 0.5F : -2, d4 = block == 0 ? 0.25F : 3, least = block == 0 ? -1 : 7;
      const int byte = static_cast<unsigned char>(packed4[static_cast<std::size_t>(i % 16)]);
      const int code = i < 16 ? byte % 16 : byte / 16;
      const int at = block * 32 + i;
      EXPECT_EQ(q8[0][at].item<float>(),
                d8 * static_cast<float>(static_cast<signed char>(packed8[static_cast<std::size_t>(i)])));
      EXPECT_EQ(q40[0][at].item<float>(), d4 * static_cast<float>(code - 8));
      EXPECT_EQ(q41[0][at].item<float>(), d4 * static_cast<float>(code) + least);
    }
  }
}

TEST_F(GgufTensors, AnyRangeOfOneIsThatOfTheWhole) {
  GgufBytes file = small_llama();
  std::string blocks;
  for (int i = 0; i < 8; ++i) blocks += half(0.1F * static_cast<float>(i + 1)) + codes(32);
  // 8 rows of 32 in 2 heads, which lie in another order in the file.
  file.tensor("blk.0.attn_q.weight", kQ8_0, {8, 32}, blocks);
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto found = read(file, {name});
  const SafetensorsEntry& entry = found.at(name);
  const at::Tensor whole = all(entry).view({-1});
  for (const auto& [from, count] : {std::pair(0, 1), {31, 2}, {33, 100}, {100, 156}, {255, 1}}) {
    EXPECT_TRUE(at::equal(entry.read(from, count), whole.narrow(0, from, count))) << from;
  }
}

TEST_F(GgufTensors, RowsOfRotatedHeadsComeBackInTransformersOrder) {
  // llama.cpp stores row j of half i of a head as row 2 * j + i. Each row here holds its own number in transformers.
  std::vector<float> there(64);
  for (int head = 0; head < 2; ++head) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        for (int c = 0; c < 8; ++c)
          there[static_cast<std::size_t>((head * 4 + 2 * j + i) * 8 + c)] = static_cast<float>(head * 4 + i * 2 + j);
      }
    }
  }
  GgufBytes file = small_llama();
  file.tensor("blk.1.attn_k.weight", 0, {8, 8}, GgufBytes::floats(there));
  const auto found = read(file, {"model.layers.1.self_attn.k_proj.weight"});
  const at::Tensor rows = all(found.at("model.layers.1.self_attn.k_proj.weight"));
  EXPECT_TRUE(at::equal(rows, at::arange(8, at::kFloat).view({8, 1}).expand({8, 8}))) << rows;
}

TEST_F(GgufTensors, NormsOfGemmaLoseTheOneThatTransformersAdds) {
  GgufBytes file = small_llama("gemma2");
  file.number("gemma2.attn_logit_softcapping", 50)
      .number("gemma2.final_logit_softcapping", 30)
      .count("gemma2.attention.sliding_window", 16);
  file.tensor("output_norm.weight", 0, {8}, GgufBytes::floats({1, 1.5F, 2, 0, 1, 1, 1, 1}));
  const at::Tensor norm = all(read(file, {"model.norm.weight"}).at("model.norm.weight"));
  EXPECT_EQ(norm[1].item<float>(), 0.5F);
  EXPECT_EQ(norm[3].item<float>(), -1);
}

TEST_F(GgufTensors, OfSixteenBitsAreMappedInTheirType) {
  GgufBytes file = small_llama();
  file.tensor("output.weight", kF16, {1, 8}, codes(16)).tensor("output_norm.weight", kBF16, {8}, codes(16));
  const auto found = read(file, {"lm_head.weight", "model.norm.weight"});
  EXPECT_EQ(found.at("lm_head.weight").values.scalar_type(), at::kHalf);
  EXPECT_EQ(found.at("model.norm.weight").values.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(found.at("lm_head.weight").read);
}

TEST_F(GgufTensors, OfAllPartsOfAModelAreRead) {
  const auto split = [](GgufBytes& file, std::uint32_t number) {
    return file.count("split.no", number).count("split.count", 2).bytes();
  };
  GgufBytes first = small_llama(), second;
  first.tensor("blk.0.ffn_norm.weight", 0, {8}, GgufBytes::floats({1, 2, 3, 4, 5, 6, 7, 8}));
  second.tensor("output_norm.weight", 0, {8}, GgufBytes::floats({8, 7, 6, 5, 4, 3, 2, 1}))
      .tensor("blk.0.attn_q.weight", 0, {8, 1}, GgufBytes::floats({0, 1, 2, 3, 4, 5, 6, 7}));
  folder_.write("m-00001-of-00002.gguf", split(first, 0));
  folder_.write("m-00002-of-00002.gguf", split(second, 1));
  const auto found = GgufWeights(folder_ / "m-00001-of-00002.gguf")
                         .read({"model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
                                "model.layers.0.self_attn.q_proj.weight"});
  EXPECT_EQ(all(found.at("model.layers.0.post_attention_layernorm.weight"))[7].item<float>(), 8);
  EXPECT_EQ(all(found.at("model.norm.weight"))[0].item<float>(), 8);
  // Rows in pairs, of 2 heads of 4.
  EXPECT_TRUE(at::equal(all(found.at("model.layers.0.self_attn.q_proj.weight")).flatten(),
                        at::tensor({0.0F, 2.0F, 1.0F, 3.0F, 4.0F, 6.0F, 5.0F, 7.0F})));
}

TEST_F(GgufTensors, OfAnotherModelAreNamed) {
  const HfFormat format = hf_format(
      Json::parse(R"({"hf": {"config": {"model_type": "llama", "hidden_size": 16}, "must_agree": ["hidden_size"],
                     "tensors": [{"parameter": "e", "name": "model.embed_tokens.weight"},
                                 {"parameter": "n", "name": "model.norm.weight"}]}})"),
      "net");
  const auto failure = [&](HfFormat wanted) {
    try {
      read_gguf_weights(folder_ / "m.gguf", wanted);
    } catch (const RuntimeFault& fault) {
      return std::string(fault.what());
    }
    return std::string("accepted");
  };
  folder_.write("m.gguf", small_llama().tensor("more", 0, {1}, GgufBytes::floats({1})).bytes());
  EXPECT_THAT(failure(format), HasSubstr("hidden_size is 8, and that of model 'net' is 16."));
  HfFormat fitting = format;
  fitting.must_agree.clear();
  EXPECT_THAT(failure(fitting),
              HasSubstr("does not fit model 'net'. Missing: 'model.norm.weight'. Without a place in the "
                        "model: 'more'."));
  folder_.write("m.gguf", small_llama().tensor("blk.0.attn_q.weight", 0, {6, 8}, std::string(192, '\0')).bytes());
  fitting.tensors.push_back({"q", "model.layers.0.self_attn.q_proj.weight", "", false});
  EXPECT_THAT(failure(fitting),
              HasSubstr("tensor 'blk.0.attn_q.weight' has 6 rows, which 2 heads of an even size do not "
                        "make up."));
}

TEST(GgufBlocks, OfQ80AreRoundedAsLlamaCppDoes) {
  const at::Tensor matrix = at::randn({3, 64}, at::TensorOptions(at::kFloat));
  matrix[1].narrow(0, 0, 32).zero_();
  const at::Tensor blocks = gguf_blocks(rounded_to_q8_0(matrix));
  const auto* bytes = blocks.const_data_ptr<std::uint8_t>();
  for (int row = 0; row < 3; ++row) {
    for (int block = 0; block < 2; ++block, bytes += 34) {
      float largest = 0;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(matrix[row][block * 32 + i].item<float>()));
      const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes), 2), half(scale));
      for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(static_cast<std::int8_t>(bytes[2 + i]),
                  std::round(matrix[row][block * 32 + i].item<float>() * inverse));
      }
    }
  }
}

TEST(GgufWriterEntries, AreKeptAsTheyAreUnlessTheMetadataHaveTheKey) {
  const std::string bytes =
      GgufBytes()
          .add("scores", 9,
               GgufBytes::raw(std::uint32_t{6}) + GgufBytes::raw(std::uint64_t{2}) + GgufBytes::floats({1, 2}))
          .add("flag", 7, std::string(1, '\1'))
          .count("bos", 5)
          .bytes();
  const auto parsed = [](const std::string& file) {
    return parse_gguf(reinterpret_cast<const std::byte*>(file.data()), file.size(), "f");
  };
  const GgufHeader header = parsed(bytes);
  const TemporaryFolder folder;
  Json metadata = Json::object();
  metadata["bos"] = 6;
  write_gguf(folder / "w.gguf", metadata, {}, header.metadata);
  const std::string written = test::read_bytes(folder / "w.gguf");
  const GgufHeader back = parsed(written);
  ASSERT_EQ(back.metadata.size(), 3u);
  EXPECT_EQ(back.find("bos")->integer(), 6);
  EXPECT_EQ(back.find("scores")->value, header.find("scores")->value);
  EXPECT_EQ(back.find("flag")->value, header.find("flag")->value);
  const std::string alone = gguf_metadata_file(header.metadata);
  EXPECT_EQ(parsed(alone).find("bos")->integer(), 5);
}

}  // namespace
}  // namespace capstan
