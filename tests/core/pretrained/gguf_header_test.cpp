#include "core/pretrained/gguf_header.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using test::small_llama;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufHeader parse(const std::string& bytes) {
  return parse_gguf(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "'f.gguf'");
}

std::string failure(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(GgufHeader, TellsMetadataOfEveryType) {
  GgufBytes file;
  file.add("u8", 0, GgufBytes::raw(std::uint8_t{200}))
      .add("i8", 1, GgufBytes::raw(std::int8_t{-3}))
      .add("u16", 2, GgufBytes::raw(std::uint16_t{65000}))
      .add("i16", 3, GgufBytes::raw(std::int16_t{-300}))
      .count("u32", 4'000'000'000)
      .add("i32", 5, GgufBytes::raw(std::int32_t{-70000}))
      .number("f32", 0.5F)
      .add("bool", 7, std::string(1, '\1'))
      .words("text", "words")
      .add("array", 9,
           GgufBytes::raw(std::uint32_t{8}) + GgufBytes::raw(std::uint64_t{2}) + GgufBytes::text("a") +
               GgufBytes::text(""))
      .add("u64", 10, GgufBytes::raw(~std::uint64_t{0}))
      .add("i64", 11, GgufBytes::raw(std::int64_t{-1} << 40))
      .add("f64", 12, GgufBytes::raw(0.25));
  const std::string bytes = file.bytes();
  const GgufHeader header = parse(bytes);
  const auto integer = [&](const char* key) { return header.find(key)->integer(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -3);
  EXPECT_EQ(integer("u16"), 65000);
  EXPECT_EQ(integer("i16"), -300);
  EXPECT_EQ(integer("u32"), 4'000'000'000);
  EXPECT_EQ(integer("i32"), -70000);
  EXPECT_EQ(integer("u64"), std::nullopt);  // it does not fit
  EXPECT_EQ(integer("i64"), std::int64_t{-1} << 40);
  EXPECT_EQ(integer("f32"), std::nullopt);
  EXPECT_EQ(header.find("f32")->number(), 0.5);
  EXPECT_EQ(header.find("f64")->number(), 0.25);
  EXPECT_EQ(header.find("i8")->number(), -3.0);
  EXPECT_EQ(header.find("text")->text(), "words");
  EXPECT_EQ(header.find("u8")->text(), std::nullopt);
  EXPECT_EQ(header.find("array")->elements, 2u);
  EXPECT_EQ(header.find("bool")->value, std::string_view("\1", 1));
  EXPECT_EQ(header.find("nothing"), nullptr);
}

TEST(GgufHeader, TellsWhereTensorsStand) {
  GgufBytes file;
  file.tensor("m", 0, {2, 3}, std::string(24, 'm')).tensor("q", 8, {2, 32}, std::string(68, 'q'));
  const std::string bytes = file.bytes();
  const GgufHeader header = parse(bytes);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(bytes.substr(header.tensors[0].begin, 24), std::string(24, 'm'));
  EXPECT_EQ(header.tensors[1].type, GgufType::kQ8_0);
  EXPECT_EQ(bytes.substr(header.tensors[1].begin, header.tensors[1].end - header.tensors[1].begin),
            std::string(68, 'q'));
  EXPECT_EQ(header.tensor("q"), &header.tensors[1]);
  EXPECT_EQ(header.tensor("none"), nullptr);
}

TEST(GgufHeader, RefusesAFileThatIsCutOffAnywhere) {
  const std::string bytes = small_llama().bytes();
  ASSERT_EQ(failure(bytes), "accepted");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(failure(bytes.substr(0, length)), "accepted") << length;
  }
}

TEST(GgufHeader, TakesNoMemoryForCountsThatTheFileCannotHold) {
  GgufBytes keys = small_llama(), tensors = small_llama();
  keys.more_keys = std::uint64_t{1} << 60;
  tensors.more_tensors = std::uint64_t{1} << 60;
  EXPECT_THAT(failure(keys.bytes()),
              HasSubstr("'f.gguf': it is cut off or damaged: it would have 1152921504606846983 keys of metadata"));
  EXPECT_THAT(failure(tensors.bytes()), HasSubstr("it would have 1152921504606846977 tensors, and"));
  GgufBytes array, text;
  array.add("a", 9, GgufBytes::raw(std::uint32_t{4}) + GgufBytes::raw(std::uint64_t{1} << 62));
  EXPECT_THAT(failure(array.bytes()), HasSubstr("it would have 4611686018427387904 elements in an array"));
  text.add("t", 8, GgufBytes::raw(~std::uint64_t{0}));
  EXPECT_THAT(failure(text.bytes()), HasSubstr("a text of its metadata would take 18446744073709551615 bytes"));
}

TEST(GgufHeader, RefusesTensorsThatLieOutsideOfTheFileOrOnOneAnother) {
  EXPECT_THAT(
      failure(GgufBytes().tensor_at("m", 0, {2, 4}, 32, std::string(32, '\0')).bytes()),
      HasSubstr(
          "tensor 'm' takes 32 bytes from byte 32 of the data on, and the file has 32: it is cut off or damaged."));
  EXPECT_THAT(failure(GgufBytes().tensor_at("m", 0, {2, 4}, ~std::uint64_t{31}, std::string(32, '\0')).bytes()),
              HasSubstr("tensor 'm' takes 32 bytes from byte 18446744073709551584 of the data on"));
  EXPECT_THAT(failure(GgufBytes().tensor_at("m", 0, {4}, 8, std::string(32, '\0')).bytes()),
              HasSubstr("tensor 'm' stands at byte 8 of the data, which is no multiple of 32."));
  EXPECT_THAT(failure(GgufBytes().tensor("m", 0, {16}, std::string(64, '\0')).tensor_at("n", 0, {4}, 32, "").bytes()),
              HasSubstr("tensor 'n' overlaps 'm'."));
  EXPECT_THAT(
      failure(
          GgufBytes().tensor("m", 0, {4}, std::string(16, '\0')).tensor("m", 0, {4}, std::string(16, '\0')).bytes()),
      HasSubstr("tensor 'm' is there twice."));
}

TEST(GgufHeader, RefusesSizesThatOverflow) {
  EXPECT_THAT(failure(GgufBytes().tensor("m", 0, {std::uint64_t{1} << 40, std::uint64_t{1} << 40}, "").bytes()),
              HasSubstr("tensor 'm' is too large."));
  EXPECT_THAT(failure(GgufBytes().tensor("m", 0, {~std::uint64_t{0}}, "").bytes()),
              HasSubstr("tensor 'm' is too large."));
  EXPECT_THAT(failure(GgufBytes().tensor("m", 0, {1, 1, 1, 1, 1}, "").bytes()),
              HasSubstr("tensor 'm' has 5 dimensions, and 4 are the most."));
}

TEST(GgufHeader, NamesTheTypesThatItDoesNotRead) {
  EXPECT_THAT(
      failure(GgufBytes().tensor("m", 12, {256}, std::string(144, '\0')).bytes()),
      HasSubstr("tensor 'm' is of type Q4_K, which is not read here: F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are. Take "
                "another file of the model, or convert this one with llama-quantize --allow-requantize FILE OUT "
                "Q8_0."));
  EXPECT_THAT(failure(GgufBytes().tensor("m", 14, {256}, "").bytes()), HasSubstr("is of type Q6_K, "));
  EXPECT_THAT(failure(GgufBytes().tensor("m", 999, {256}, "").bytes()), HasSubstr("is of type 999, "));
  // enum ggml_type of ggml.h
  const std::pair<std::uint32_t, const char*> packed[] = {
      {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},   {23, "IQ4_XS"}, {29, "IQ1_M"},   {34, "TQ1_0"}, {39, "MXFP4"},  {40, "NVFP4"}};
  for (const auto& [number, name] : packed) {
    EXPECT_THAT(failure(GgufBytes().tensor("m", number, {256}, "").bytes()),
                HasSubstr(std::string("is of type ") + name + ", "));
  }
  EXPECT_THAT(failure(GgufBytes().tensor("m", 8, {2, 16}, "").bytes()),
              HasSubstr("tensor 'm' has rows of 16 elements, and its type packs blocks of 32."));
}

TEST(GgufHeader, RefusesOtherFilesAndOtherVersions) {
  EXPECT_THAT(failure("{}"), HasSubstr("'f.gguf': this is not a GGUF file: it does not begin with 'GGUF'."));
  GgufBytes old = small_llama(), swapped = small_llama();
  old.version = 1;
  swapped.version = 0x03000000;
  EXPECT_THAT(failure(old.bytes()), HasSubstr("it is of version 1 of GGUF, and this program reads 2 and 3."));
  EXPECT_THAT(failure(swapped.bytes()), HasSubstr("it is a big-endian GGUF file."));
}

TEST(GgufHeader, RefusesMetadataThatTheFormatDoesNotHave) {
  EXPECT_THAT(failure(GgufBytes().add("k", 77, "x").bytes()),
              HasSubstr("its metadata key 'k' is of type 77, which GGUF does not have."));
  EXPECT_THAT(failure(GgufBytes().count("k", 1).count("k", 2).bytes()),
              HasSubstr("the key 'k' of its metadata is there twice."));
  EXPECT_THAT(
      failure(GgufBytes().add("k", 9, GgufBytes::raw(std::uint32_t{9}) + GgufBytes::raw(std::uint64_t{0})).bytes()),
      HasSubstr("its metadata key 'k' is an array of arrays."));
  EXPECT_THAT(failure(GgufBytes().count("general.alignment", 24).tensor("m", 0, {4}, std::string(16, '\0')).bytes()),
              HasSubstr("its general.alignment is not a power of two from 1 to 1,048,576."));
}

}  // namespace
}  // namespace capstan
