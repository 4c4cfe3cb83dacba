#include "core/pretrained/model_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

std::string failure(const std::filesystem::path& path) {
  try {
    read_pretrained(path.string());
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(ModelSource, IsToldFromATypeOfAModel) {
  EXPECT_EQ(pretrained_path("hf:models/llama"), "models/llama");
  EXPECT_EQ(pretrained_path("hf:a.gguf"), "a.gguf");
  EXPECT_EQ(pretrained_path("models/a.gguf"), "models/a.gguf");
  EXPECT_EQ(pretrained_path("gpt:tiny"), std::nullopt);
  EXPECT_EQ(pretrained_path("gguf"), std::nullopt);
}

TEST(ModelSource, KeepsTheWholeConfiguration) {
  const TemporaryFolder folder;
  const char* text = R"({"model_type": "llama", "auto_map": {"AutoModel": "code.Net"}, "mine": [1, {"a": null}]})";
  folder.write("config.json", text);
  const PretrainedModel model = read_pretrained(folder.path().string());
  EXPECT_EQ(model.model_type, "llama");
  EXPECT_EQ(model.config.dump(), Json::parse(text).dump());
  EXPECT_TRUE(model.has_remote_code);
}

TEST(ModelSource, ReadsGgufFilesToo) {
  const TemporaryFolder folder;
  folder.write("m.gguf", test::small_llama().bytes());
  const PretrainedModel model = read_pretrained((folder / "m.gguf").string());
  EXPECT_EQ(model.model_type, "llama");
  EXPECT_EQ(model.config.at("hidden_size"), Json(8));
  EXPECT_FALSE(model.has_remote_code);
}

TEST(ModelSource, NamesWhatIsWrongWithAFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(failure(folder / "none"),
              HasSubstr("none': there is no such folder or file. Models are read from this machine alone"));
  EXPECT_THAT(failure(folder.path()), HasSubstr("it has no config.json, so it is not a folder of transformers."));
  folder.write("config.json", "{\"model_type\": ");
  EXPECT_THAT(failure(folder.path()), HasSubstr("config.json': JSON, line 1, column "));
  folder.write("config.json", "[]");
  EXPECT_THAT(failure(folder.path()), HasSubstr("config.json': must be an object, got array."));
  folder.write("config.json", R"({"architectures": ["X"]})");
  EXPECT_THAT(failure(folder.path()),
              HasSubstr("config.json': model_type is missing, and a text that names the model"));
  folder.write("config.json", R"({"model_type": 3})");
  EXPECT_THAT(failure(folder.path()), HasSubstr("model_type is 3, "));
  folder.write("config.json", R"({"model_type": "llama", "quantization_config": {"quant_method": "awq"}})");
  EXPECT_THAT(failure(folder.path()), HasSubstr("quantization_config says that its weights are packed by 'awq'."));
  folder.write("config.json", "{\"model_type\": \"llama\", \"a\": \"" + std::string(1 << 20, 'x') + "\"}");
  EXPECT_THAT(failure(folder.path()), HasSubstr("is larger than 1 MiB"));
  folder.write("config.json", "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}");
  EXPECT_THAT(failure(folder.path()), HasSubstr("is nested deeper than 32 levels."));
  folder.write("weights.bin", "x");
  EXPECT_THAT(failure(folder / "weights.bin"), HasSubstr("is neither a folder of transformers nor a file *.gguf."));
}

TEST(ModelSource, WaitsForNoPipeAndFollowsNoLoop) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(failure(folder.path()), HasSubstr("config.json': is not a regular file."));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(failure(folder / "loop"), HasSubstr("loop': Too many levels of symbolic links."));
  std::filesystem::remove(folder / "config.json");
  std::filesystem::create_symlink("config.json", folder / "config.json");
  EXPECT_THAT(failure(folder.path()), HasSubstr("config.json': cannot be read: Too many levels of symbolic links."));
  ASSERT_EQ(::mkfifo((folder / "p.gguf").c_str(), 0600), 0);
  EXPECT_THAT(failure(folder / "p.gguf"), HasSubstr("p.gguf' is no regular file"));
}

TEST(ConfigDifference, NamesTheFirstKeyThatDiffers) {
  const auto difference = [](const char* saved, const char* now) {
    const auto found = config_difference(Json::parse(saved), Json::parse(now));
    return found ? found->key + ": " + found->saved + ", " + found->now : "none";
  };
  EXPECT_EQ(difference(R"({"a": 1, "b": {"c": 2.0}})", R"({"b": {"c": 2}, "a": 1})"), "none");
  EXPECT_EQ(difference(R"({"a": 1, "b": {"c": 2}})", R"({"a": 1, "b": {"c": 3}})"), "b.c: 2, 3");
  EXPECT_EQ(difference(R"({"a": 1, "b": 2})", R"({"a": 1})"), "b: 2, nothing");
  EXPECT_EQ(difference(R"({"a": 1})", R"({"a": 1, "b": "x"})"), "b: nothing, \"x\"");
  EXPECT_EQ(difference(R"({"a": 1, "torch_dtype": "float32"})",
                       R"({"a": 1, "dtype": "bfloat16", "transformers_version": "5"})"),
            "none");
}

}  // namespace
}  // namespace capstan
