#include "core/checkpoint/carried_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/text/json.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> names(const CarriedFiles& files) {
  std::vector<std::string> all;
  for (const auto& [name, bytes] : files) all.push_back(name);
  return all;
}

TEST(CarriedFiles, AreThoseOfTheTokenizerAndComeBackAsTheyWere) {
  const TemporaryFolder folder;
  const std::string bytes("\0\xff{}\n", 5);
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "vocab.json",
        "merges.txt", "chat_template.jinja", "generation_config.json", "qwen.tiktoken", "spiece.model"}) {
    folder.write(name, bytes);
  }
  for (const char* other : {"config.json", "model.safetensors", "README.md", "modeling_net.py", "tokenizers/a"}) {
    folder.write(other, "x");
  }
  const CarriedFiles files = read_carried_files(folder.path());
  EXPECT_THAT(names(files), ElementsAre("chat_template.jinja", "generation_config.json", "merges.txt", "qwen.tiktoken",
                                        "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model",
                                        "tokenizer_config.json", "vocab.json"));
  const TemporaryFolder out;
  write_carried_files(out.path(), files);
  EXPECT_EQ(test::read_bytes(out / "tokenizer.model"), bytes);
}

TEST(CarriedFiles, AboveTheLimitAreLeftOutWithAWarning) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", "x");
  folder.write("tokenizer.model", "x");
  std::filesystem::resize_file(folder / "tokenizer.model", (64 << 20) + 1);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(names(read_carried_files(folder.path())), ElementsAre("tokenizer.json"));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("tokenizer.model': has 67108865 bytes, more than checkpoints take with them (64 MiB a file, 128 MiB "
                "in all), so exports lack it."));
}

TEST(CarriedFiles, OfAFolderThatLeadsNowhereAreAnError) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("tokenizer.json", folder / "tokenizer.json");
  EXPECT_THAT([&] { read_carried_files(folder.path()); },
              ThrowsMessage<RuntimeFault>(HasSubstr("tokenizer.json': Too many levels of symbolic links.")));
}

TEST(CarriedFiles, OfAGgufFileGiveAFolderItsTokenizer) {
  const TemporaryFolder folder, out, other;
  const auto with = [](const char* kind) {
    test::GgufBytes file = test::small_llama();
    file.words("tokenizer.ggml.model", kind)
        .add("tokenizer.ggml.tokens", 9, test::GgufBytes::texts({"a", "b", "ab"}))
        .add("tokenizer.ggml.merges", 9, test::GgufBytes::texts({"a b"}))
        .count("tokenizer.ggml.eos_token_id", 1);
    return file.bytes();
  };
  folder.write("m.gguf", with("gpt2"));
  write_carried_files(out.path(), read_carried_files(folder / "m.gguf"));
  EXPECT_EQ(Json::parse(test::read_bytes(out / "tokenizer.json")).at("model"),
            Json::parse(R"({"type": "BPE", "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2},
                            "merges": ["a b"]})"));
  EXPECT_EQ(Json::parse(test::read_bytes(out / "tokenizer_config.json")).at("eos_token"), Json("b"));

  folder.write("m.gguf", with("rwkv"));
  ::testing::internal::CaptureStderr();
  write_carried_files(other.path(), read_carried_files(folder / "m.gguf"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("no tokenizer.json is written: the GGUF file that the model came from: its tokenizer is of the "
                        "kind 'rwkv'"));
  EXPECT_FALSE(std::filesystem::exists(other / "tokenizer.json"));
}

TEST(CarriedFiles, OfAGgufFileAreItsMetadataWithoutTheShape) {
  const TemporaryFolder folder;
  folder.write("m.gguf", test::small_llama()
                             .words("tokenizer.ggml.model", "gpt2")
                             .words("general.name", "net")
                             .count("general.file_type", 7)
                             .bytes());
  const CarriedFiles files = read_carried_files(folder / "m.gguf");
  ASSERT_THAT(names(files), ElementsAre(kGgufMetadata));
  const at::Tensor& bytes = files.at(kGgufMetadata);
  const GgufHeader header =
      parse_gguf(static_cast<const std::byte*>(bytes.const_data_ptr()), static_cast<std::uint64_t>(bytes.numel()), "f");
  std::vector<std::string> keys;
  for (const GgufEntry& entry : header.metadata) keys.emplace_back(entry.key);
  EXPECT_THAT(keys, ElementsAre("tokenizer.ggml.model", "general.name"));
  const TemporaryFolder out;
  write_carried_files(out.path(), files);
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

TEST(CarriedFiles, OfACheckpointHaveNamesThatStayInTheFolder) {
  CheckpointContents contents;
  contents.tensors.push_back({"tokenizer/../../evil", kFileState, {1}, 0, host_zeros({1}, at::kByte)});
  EXPECT_THAT(
      [&] { carried_files_of(contents); },
      ThrowsMessage<RuntimeFault>(HasSubstr("the checkpoint holds a file 'tokenizer/../../evil', which no checkpoint "
                                            "takes with it.")));
  contents.tensors[0].parameter = "config.json";
  EXPECT_THROW(carried_files_of(contents), RuntimeFault);
  contents.tensors[0].parameter = "tokenizer.json";
  contents.tensors[0].values = host_zeros({1}, at::kFloat);
  EXPECT_THAT([&] { carried_files_of(contents); },
              ThrowsMessage<RuntimeFault>("the checkpoint holds 'tokenizer.json' as something else than bytes."));
}

}  // namespace
}  // namespace capstan
