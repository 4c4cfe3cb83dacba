#include "core/model/saved_names.hpp"

#include <gmock/gmock.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::Pair;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

std::vector<NamedTensor> tensors(const std::vector<std::string>& names) {
  std::vector<NamedTensor> all;
  for (const std::string& name : names) all.push_back({.name = name});
  return all;
}

auto refuses(const std::string& text) { return ThrowsMessage<PluginError>("model 'net', describe: " + text); }

TEST(SavedNames, MarkTheBuffersThatAreNotPersistent) {
  std::vector<NamedTensor> buffers = tensors({"mean", "mask"});
  find_persistence(buffers, Json::parse(R"({"non_persistent_buffers": ["mask"]})"), "model 'net', describe");
  EXPECT_TRUE(buffers[0].persistent);
  EXPECT_FALSE(buffers[1].persistent);
}

TEST(SavedNames, RefuseWhatIsNotABuffer) {
  const auto find = [](const char* facts) {
    std::vector<NamedTensor> buffers = tensors({"mean", "mask"});
    find_persistence(buffers, Json::parse(facts), "model 'net', describe");
  };
  EXPECT_THAT([&] { find(R"({"non_persistent_buffers": ["maks"]})"); },
              refuses("non_persistent_buffers: the model shows no buffer 'maks'. Did you mean 'mask'?"));
  EXPECT_THAT([&] { find(R"({"non_persistent_buffers": [3]})"); },
              refuses("non_persistent_buffers: the model shows no buffer '3'."));
  EXPECT_THAT([&] { find(R"({"non_persistent_buffers": "mask"})"); },
              refuses("non_persistent_buffers: must be an array of names, got \"mask\"."));
}

TEST(SavedNames, TellWhatIsTied) {
  const auto read = [](const char* facts) {
    return read_tied(tensors({"embed", "norm"}), tensors({"mean"}), Json::parse(facts), "model 'net', describe");
  };
  EXPECT_THAT(read(R"({"tied": {"head": "embed", "again": "mean"}})"),
              UnorderedElementsAre(Pair("head", "embed"), Pair("again", "mean")));
  EXPECT_TRUE(read("{}").empty());
  EXPECT_THAT([&] { read(R"({"tied": {"norm": "embed"}})"); },
              refuses("tied.norm: is a tensor of its own. Leave it out."));
  EXPECT_THAT([&] { read(R"({"tied": {"head": "embde"}})"); },
              refuses("tied.head: the model shows no tensor 'embde'. Did you mean 'embed'?"));
  EXPECT_THAT([&] { read(R"({"tied": ["head"]})"); }, refuses("tied: must be an object, got [\"head\"]."));
}

}  // namespace
}  // namespace capstan
