#include "core/checkpoint/hf_folder.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using testing::ThrowsMessage;

const char* kDescription = R"({"hf": {"config": {"model_type": "net", "n_head": 2, "scale": 1e-05},
  "must_agree": ["model_type", "n_head", "scale"], "prefix": "net.", "ignored": [".mask"],
  "tensors": [{"parameter": "a.weight", "name": "net.h.a.weight", "transposed": true},
              {"parameter": "a.bias", "name": "net.h.a.bias"},
              {"parameter": "head", "name": "head.weight", "or": "net.h.a.bias"}]}})";

HfFormat format() { return hf_format(Json::parse(kDescription), "net"); }

at::Tensor matrix() { return at::arange(6, at::kFloat).view({2, 3}); }
at::Tensor vector() { return at::arange(3, at::kFloat); }

class HfFolder : public testing::Test {
 protected:
  void write_weights(const std::vector<SafetensorsEntry>& entries, const char* file = "model.safetensors") const {
    write_safetensors(folder_ / file, entries);
  }
  std::string failure() const {
    try {
      read_hf_folder(folder_.path(), format());
    } catch (const RuntimeFault& fault) {
      return fault.what();
    }
    return "none";
  }

  TemporaryFolder folder_;
};

TEST_F(HfFolder, HoldsWhatWasWrittenUnderItsOwnNamesAndTheOtherWayRound) {
  write_hf_folder(folder_ / "new" / "folder", format(),
                  {{"a.weight", matrix()}, {"a.bias", vector()}, {"head", vector().add(1)}});
  std::map<std::string, at::Tensor> there;
  for (const auto& entry : read_safetensors(folder_ / "new" / "folder" / "model.safetensors")) {
    there[entry.name] = entry.values;
  }
  EXPECT_TRUE(at::equal(there.at("net.h.a.weight"), matrix().t()));
  EXPECT_TRUE(at::equal(there.at("net.h.a.bias"), vector()));
  const Json config = Json::parse(test::read_bytes(folder_ / "new" / "folder" / "config.json"));
  EXPECT_EQ(config.at("n_head").as_integer(), 2);
  EXPECT_EQ(config.at("torch_dtype").as_string(), "float32");

  const auto read = read_hf_folder(folder_ / "new" / "folder", format());
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0].name, "a.weight");
  EXPECT_TRUE(at::equal(read[0].values, matrix()));
  EXPECT_TRUE(at::equal(read[2].values, vector().add(1)));
}

TEST_F(HfFolder, MayLeaveThePrefixOutHoldMasksAndTieWhatIsNotThere) {
  folder_.write("config.json", R"({"model_type": "net"})");
  write_weights({{"h.a.weight", matrix().t().contiguous()}, {"h.a.bias", vector()}, {"h.a.mask", vector()}});
  const auto read = read_hf_folder(folder_.path(), format());
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[2].name, "head");
  EXPECT_TRUE(at::equal(read[2].values, vector()));
}

TEST_F(HfFolder, IsReadFromSeveralFiles) {
  folder_.write("config.json", R"({"model_type": "net"})");
  folder_.write("model.safetensors.index.json",
                R"({"weight_map": {"net.h.a.weight": "1.safetensors", "net.h.a.bias": "2.safetensors"}})");
  write_weights({{"net.h.a.weight", matrix().t().contiguous()}}, "1.safetensors");
  write_weights({{"net.h.a.bias", vector()}}, "2.safetensors");
  EXPECT_EQ(read_hf_folder(folder_.path(), format()).size(), 3U);
}

TEST_F(HfFolder, OfAnotherShapeIsRefusedByTheKey) {
  folder_.write("config.json", R"({"model_type": "net", "n_head": 4})");
  EXPECT_THAT(failure(), HasSubstr("config.json: n_head is 4, and that of model 'net' is 2. Give the model the "));
}

TEST_F(HfFolder, NamesWhatLacksAndWhatHasNoPlace) {
  folder_.write("config.json", "{}");
  write_weights({{"net.h.a.bias", vector()}, {"net.h.b", vector()}});
  EXPECT_THAT(failure(), HasSubstr("does not fit model 'net'. Missing: 'net.h.a.weight'. Without a place in the "
                                   "model: 'net.h.b'."));
}

TEST_F(HfFolder, IsToldFromOtherFolders) {
  EXPECT_THAT(failure(), HasSubstr("it has no config.json, so it is not a folder of transformers."));
  folder_.write("config.json", "{}");
  EXPECT_THAT(failure(), HasSubstr("it has neither model.safetensors nor model.safetensors.index.json. transformers "
                                   "writes them with save_pretrained(FOLDER, safe_serialization=True)."));
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"x": "../x"}})");
  EXPECT_THAT(failure(), HasSubstr("'../x' is not a file's name."));
  folder_.write("model.safetensors.index.json", "[]");
  EXPECT_THAT(failure(), HasSubstr("it has no weight_map."));
}

TEST(HfFormat, OfAModelThatTellsNoneOrTellsItWrongIsRefused) {
  EXPECT_THAT([] { hf_format(Json::object(), "net"); },
              ThrowsMessage<PluginError>(HasSubstr(
                  "model 'net': does not say how its weights are called in transformers (\"hf\" in what it tells of "
                  "itself). Use safetensors or pt instead.")));
  EXPECT_THAT([] { hf_format(Json::parse(R"({"hf": {"config": {}}})"), "net"); },
              ThrowsMessage<PluginError>(HasSubstr("what it says of transformers' format is malformed: ")));
  EXPECT_THAT([] { hf_format(Json::parse(R"({"hf": {"config": {}, "tensors": 3}})"), "net"); },
              ThrowsMessage<PluginError>(HasSubstr("has values of a wrong type.")));
}

TEST_F(HfFolder, IsNotWrittenWithoutATensorsName) {
  EXPECT_THAT(
      [&] {
        write_hf_folder(folder_.path(), format(), {{"buffer", vector()}});
      },
      ThrowsMessage<RuntimeFault>(HasSubstr("model 'net': has no name in transformers for 'buffer'.")));
}

}  // namespace
}  // namespace capstan
