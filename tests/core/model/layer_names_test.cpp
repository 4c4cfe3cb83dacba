#include "core/model/layer_names.hpp"

#include <gmock/gmock.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Modules = std::vector<std::pair<std::string, std::string>>;  // path and class

/// A model of modules without parameters.
struct Shown {
  Modules modules;
  std::string facts;
};

const capstan_model* table() {
  static const capstan_model vtable = [] {
    capstan_model made{};
    made.struct_size = sizeof made;
    made.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      for (const auto& [path, name] : static_cast<Shown*>(self)->modules) {
        visitor->module(visitor->ctx, as_str(path), as_str(name));
      }
      return CAPSTAN_OK;
    };
    made.forward = [](void*, capstan_batch*, capstan_tensor*, capstan_error*) { return CAPSTAN_FAILED; };
    made.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    made.describe = [](void* self, capstan_sink* sink, capstan_error*) {
      sink->text = static_cast<Shown*>(self)->facts;
      return CAPSTAN_OK;
    };
    return made;
  }();
  return &vtable;
}

std::vector<std::string> names_of(Modules modules, const std::string& facts = "{}") {
  Shown shown{std::move(modules), facts};
  const Model model(
      table(), &shown, [](void*) {}, "shown");
  return layer_names(model);
}

TEST(LayerNames, AreModulesOfOneClassThatAPathNumbers) {
  EXPECT_THAT(names_of({{"", "Net"},
                        {"blocks", "ModuleList"},
                        {"blocks.0", "Block"},
                        {"blocks.0.fc", "Linear"},
                        {"blocks.1", "Block"},
                        {"head", "Linear"}}),
              ElementsAre("blocks.0", "blocks.1"));
}

TEST(LayerNames, AreTheLongestRowAndNoneWithinAnother) {
  EXPECT_THAT(names_of({{"stem.0", "Conv"},
                        {"h.0", "Block"},
                        {"h.0.mlp.0", "Linear"},
                        {"h.0.mlp.1", "Linear"},
                        {"h.0.mlp.2", "Linear"},
                        {"h.1", "Block"}}),
              ElementsAre("h.0", "h.1"));
}

TEST(LayerNames, AreNoRowOfSeveralClassesOrWithAGap) {
  EXPECT_THAT(names_of({{"0", "Linear"}, {"1", "ReLU"}, {"2", "Linear"}}), IsEmpty());
  EXPECT_THAT(names_of({{"h.0", "Block"}, {"h.2", "Block"}}), IsEmpty());
  EXPECT_THAT(names_of({{"", "Net"}, {"fc", "Linear"}}), IsEmpty());
}

TEST(LayerNames, AreWhatTheModelSaysFirst) {
  const Modules modules = {{"h.0", "Block"}, {"h.1", "Block"}};
  EXPECT_THAT(names_of(modules, R"({"layer_names": ["encoder", "decoder"]})"), ElementsAre("encoder", "decoder"));
  EXPECT_THAT(names_of(modules, R"({"layer_names": []})"), IsEmpty());
  EXPECT_THAT(names_of(modules, R"({"layer_names": null})"), ElementsAre("h.0", "h.1"));
}

TEST(LayerNames, RefuseWhatIsNoListOfNames) {
  const auto refusal = [](const std::string& told, const std::string& text) {
    EXPECT_THAT([&] { names_of({}, "{\"layer_names\": " + told + "}"); },
                ThrowsMessage<PluginError>(HasSubstr("model 'shown', describe, layer_names: " + text)))
        << told;
  };
  refusal("2", "must be an array of texts, got 2.");
  refusal("[\"a\", 2]", "must be an array of texts, has 2.");
  refusal("[\"a\", \"a\"]", "has 'a' twice.");
}

}  // namespace
}  // namespace capstan
