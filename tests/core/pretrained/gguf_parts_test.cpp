#include "core/pretrained/gguf_parts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/sdk/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/pretrained/model_source.hpp"
#include "tests/core/pretrained/gguf_bytes.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using test::GgufBytes;
using test::small_llama;
using ::testing::HasSubstr;

class GgufParts : public ::testing::Test {
 protected:
  void SetUp() override {
    GgufBytes first = small_llama();
    write("m-00001-of-00003.gguf", split(first, 0));
    write("m-00002-of-00003.gguf", part(1, "output.weight"));
    write("m-00003-of-00003.gguf", part(2, "rope_freqs.weight"));
  }

  static GgufBytes& split(GgufBytes& file, std::uint16_t number) {
    return file.add("split.no", 2, GgufBytes::raw(number))
        .add("split.count", 2, GgufBytes::raw(std::uint16_t{3}))
        .add("split.tensors.count", 5, GgufBytes::raw(std::int32_t{3}));
  }
  static GgufBytes part(std::uint16_t number, const char* tensor) {
    GgufBytes file;
    split(file, number);
    return file.tensor(tensor, 0, {2}, GgufBytes::floats({1, 1}));
  }
  void write(const char* name, const GgufBytes& file) const { write_bytes(folder_ / name, file.bytes()); }
  std::string failure(const char* name = "m-00001-of-00003.gguf") const {
    try {
      read_pretrained((folder_ / name).string());
    } catch (const RuntimeFault& fault) {
      return fault.what();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
};

TEST_F(GgufParts, AreOneModel) {
  const GgufFiles<sdk::MappedFile> all(folder_ / "m-00001-of-00003.gguf");
  ASSERT_EQ(all.header.tensors.size(), 3u);
  EXPECT_EQ(all.header.tensor("token_embd.weight")->part, 0u);
  EXPECT_EQ(all.header.tensor("output.weight")->part, 1u);
  EXPECT_EQ(all.header.tensor("rope_freqs.weight")->part, 2u);
  // The head of a further part tells that the embeddings are not tied.
  const PretrainedModel model = read_pretrained((folder_ / "m-00001-of-00003.gguf").string());
  EXPECT_EQ(model.config.at("tie_word_embeddings"), Json(false));
}

TEST_F(GgufParts, ThatAreMissingOrOthersAreNamed) {
  EXPECT_THAT(failure("m-00002-of-00003.gguf"),
              HasSubstr("it is part 2 of a model. Name the first part, m-00001-of-00003.gguf."));
  std::filesystem::copy_file(folder_ / "m-00001-of-00003.gguf", folder_ / "m.gguf");
  EXPECT_THAT(failure("m.gguf"), HasSubstr("it is part 1 of 3 of a model (split.count), and its name must end with "
                                           "-00001-of-00003.gguf for the others to be found."));
  write("m-00003-of-00003.gguf", part(1, "rope_freqs.weight"));
  EXPECT_THAT(failure(), HasSubstr("m-00003-of-00003.gguf': it is not part 3 of 3, as its name says"));
  write("m-00003-of-00003.gguf", part(2, "output.weight"));
  EXPECT_THAT(failure(), HasSubstr("m-00003-of-00003.gguf': tensor 'output.weight' is in an earlier part too."));
  GgufBytes empty;
  write("m-00003-of-00003.gguf", split(empty, 2));
  EXPECT_THAT(failure(), HasSubstr("its parts hold 2 tensors, and the model has 3 (split.tensors.count)."));
  std::filesystem::remove(folder_ / "m-00003-of-00003.gguf");
  EXPECT_THAT(failure(), HasSubstr("m-00003-of-00003.gguf': No such file or directory"));
  GgufBytes odd = small_llama();
  odd.count("split.count", 4'000'000'000);
  write("m-00001-of-00003.gguf", odd);
  EXPECT_THAT(failure(), HasSubstr("its split.no and split.count do not tell which of several files it is."));
}

}  // namespace
}  // namespace capstan
