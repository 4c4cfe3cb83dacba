// The states of optimizers that a manifest declares.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/registry/manifest_text.hpp"

namespace capstan {
namespace {

using test::parse;
using test::refusal;
using test::with_component;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(ManifestStates, ReadsStatesThatEveryRankHasOfItsOwn) {
  const auto manifest = PluginManifest::parse(
      with_component("kind = 'optimizer'\ntype = 'T'\n[[components.state]]\nname = 's'\nlike = 'share'\n"
                     "extent = 'model'\nper_rank = true"),
      "manifest");
  const StateSpec& state = manifest.components[0].state[0];
  EXPECT_EQ(state.like, StateSpec::Like::kShare);
  EXPECT_TRUE(state.per_rank);
  EXPECT_TRUE(state.reset_on_reshard);
  EXPECT_EQ(manifest.to_json().at("components").as_array()[0].at("state").as_array()[0].dump(),
            R"({"name":"s","like":"share","dtype":"float32","init":0.0,"extent":"model","on_reshard":"reset",)"
            R"("per_rank":true})");
  const auto state_refusal = [](const char* text) {
    return refusal(
        with_component(std::string("kind = 'optimizer'\ntype = 'T'\n[[components.state]]\nname = 's'\n") + text));
  };
  EXPECT_EQ(state_refusal("like = 'share'"),
            "manifest: components[0].state[0].like: 'share' needs per_rank = true beside it.");
  EXPECT_EQ(state_refusal("per_rank = true"),
            "manifest: components[0].state[0].per_rank: needs extent = 'model' beside it.");
  EXPECT_EQ(state_refusal("extent = 'model'\nper_rank = true\non_reshard = 'reshard'"),
            "manifest: components[0].state[0].on_reshard: must be 'reset' with per_rank = true: another number of "
            "ranks has no use for the values.");
}

std::string state_refusal(const std::string& lines, const std::string& traits = "['cpu']") {
  return refusal(with_component("kind = 'optimizer'\ntype = 'T'\ntraits = " + traits +
                                "\nparams.names = { type = 'string[]' }\n"
                                "params.wide = { type = 'boolean' }\n[[components.state]]\nname = 's'\n" +
                                lines));
}

TEST(ManifestStates, ReadsStatesOfBytesAndOfBlocksAndForWhomTheyAre) {
  const auto manifest =
      parse(with_component("kind = 'optimizer'\ntype = 'T'\nmeasures_model = 3\nparams.names = { type = 'string[]' }\n"
                           "state = [{ name = 'code', dtype = 'uint8', init = 127, when_min_numel = 4096 },\n"
                           "{ name = 'scale', like = 'block', block = 2048, when_dims = 2, when_names = 'names' },\n"
                           "{ name = 'start', init = 'param', when_dims = [0, 1], when_max_numel = 4095 }]"));
  const ComponentManifest& component = manifest.components[0];
  EXPECT_EQ(component.measures_model, 3);
  const auto states = component.states_with(Json::parse(R"({"names": ["emb", "^head"]})"));
  ASSERT_EQ(states.size(), 3u);
  EXPECT_EQ(states[0].dtype, "uint8");
  EXPECT_EQ(states[0].init, 127);
  EXPECT_EQ(states[1].like, StateSpec::Like::kBlock);
  EXPECT_TRUE(states[2].init_param);
  const std::int64_t matrix[] = {64, 64}, vector[] = {4095}, cube[] = {16, 16, 16};
  EXPECT_TRUE(states[0].is_for("w", matrix, CAPSTAN_PARAM_MATRIX));
  EXPECT_FALSE(states[0].is_for("w", vector, CAPSTAN_PARAM_OTHER));
  EXPECT_TRUE(states[1].is_for("tok_emb.weight", matrix, CAPSTAN_PARAM_EMBEDDING));
  EXPECT_FALSE(states[1].is_for("tok_emb.weight", cube, CAPSTAN_PARAM_EMBEDDING));
  EXPECT_FALSE(states[1].is_for("my.head", matrix, CAPSTAN_PARAM_HEAD));
  EXPECT_TRUE(states[2].is_for("w", vector, CAPSTAN_PARAM_OTHER));
  EXPECT_FALSE(states[2].is_for("w", matrix, CAPSTAN_PARAM_MATRIX));
  EXPECT_EQ(states[1].values_for(0, matrix), 0);
  EXPECT_EQ(states[1].values_for(1, matrix), 1);  // fewer elements than a block
  EXPECT_EQ(states[1].values_for(2048, matrix), 1);
  EXPECT_EQ(states[1].values_for(2049, matrix), 2);
  const Json json = manifest.to_json().at("components").as_array()[0];
  EXPECT_EQ(json.at("measures_model").as_integer(), 3);
  EXPECT_EQ(json.at("state").as_array()[0].dump(),
            R"({"name":"code","like":"param","dtype":"uint8","when_min_numel":4096,"init":127.0,"extent":"shard",)"
            R"("on_reshard":"reshard"})");
  EXPECT_EQ(json.at("state").as_array()[1].dump(),
            R"({"name":"scale","like":"block","block":2048,"dtype":"float32","when_dims":[2],"when_names":"names",)"
            R"("init":0.0,"extent":"shard","on_reshard":"reshard"})");
  EXPECT_EQ(json.at("state").as_array()[2].dump(),
            R"({"name":"start","like":"param","dtype":"float32","when_dims":[0,1],"when_max_numel":4095,)"
            R"("init":"param","extent":"shard","on_reshard":"reshard"})");
}

TEST(ManifestStates, ReadsForWhichRolesAStateIs) {
  const auto manifest = parse(
      with_component("kind = 'optimizer'\ntype = 'T'\nstate = [{ name = 'moment', when_roles = ['matrix', 'head'] }]"));
  const StateSpec& state = manifest.components[0].state[0];
  const std::int64_t matrix[] = {64, 64};
  EXPECT_TRUE(state.is_for("w", matrix, CAPSTAN_PARAM_MATRIX));
  EXPECT_TRUE(state.is_for("w", matrix, CAPSTAN_PARAM_HEAD));
  EXPECT_FALSE(state.is_for("w", matrix, CAPSTAN_PARAM_EMBEDDING));
  EXPECT_EQ(manifest.to_json().at("components").as_array()[0].at("state").as_array()[0].dump(),
            R"({"name":"moment","like":"param","dtype":"float32","when_roles":["matrix","head"],"init":0.0,)"
            R"("extent":"shard","on_reshard":"reshard"})");
}

TEST(ManifestStates, RefusesARoleThatNoModelGives) {
  const std::string state = "manifest: components[0].state[0].";
  EXPECT_EQ(state_refusal("when_roles = ['matrix', 'embeding']"),
            state +
                "when_roles: 'embeding' is not one of other, matrix, embedding, head, norm, bias. Did you mean "
                "'embedding'?");
  EXPECT_EQ(state_refusal("extent = 'model'\nwhen_roles = ['head']"),
            state + "when_roles: asks about one parameter, and extent = 'model' is for all of them.");
}

TEST(ManifestStates, RefusesBlocksThatPartsWouldCut) {
  for (const char* block : {"0", "-64", "48", "65536", "'64'", "64.5"}) {
    EXPECT_THAT(state_refusal(std::string("like = 'block'\nblock = ") + block),
                ::testing::AllOf(::testing::StartsWith("manifest: components[0].state[0].block: must be a power of two "
                                                       "from 1 to 32768, got "),
                                 ::testing::EndsWith(": parts of a parameter begin at multiples of 32768 elements.")));
  }
  EXPECT_EQ(
      state_refusal("like = 'block'"),
      "manifest: components[0].state[0].block: is missing: like = 'block' needs the number of elements that share "
      "a value.");
  EXPECT_EQ(state_refusal("block = 64"),
            "manifest: components[0].state[0].block: is for like = 'block', and like is 'param'.");
  EXPECT_EQ(state_refusal("like = 'block'\nblock = 64\nextent = 'model'"),
            "manifest: components[0].state[0].like: 'block' needs extent = 'shard' beside it.");
}

TEST(ManifestStates, ReadsStatesOfRowsAndColumns) {
  const auto manifest =
      parse(with_component("kind = 'optimizer'\ntype = 'T'\ntraits = ['needs_full_param']\n"
                           "state = [{ name = 'rows', like = 'row', when_dims = [2, 3] },\n"
                           "{ name = 'columns', like = 'column', when_dims = 3 }]"));
  const auto& states = manifest.components[0].state;
  const std::int64_t cube[] = {2, 5, 7}, empty[] = {0, 5, 7};
  EXPECT_EQ(states[0].values_for(70, cube), 10);
  EXPECT_EQ(states[1].values_for(70, cube), 14);
  EXPECT_EQ(states[0].values_for(0, cube), 0);  // a rank without the parameter
  EXPECT_EQ(states[1].values_for(0, empty), 0);
  const Json json = manifest.to_json().at("components").as_array()[0];
  EXPECT_EQ(json.at("state").as_array()[1].at("like").as_string(), "column");
}

TEST(ManifestStates, RefusesRowsWhereAParameterHasNoneOrComesInParts) {
  const std::string dims =
      "when_dims: must be given with like = 'row' or 'column', and be at least 2: other parameters have none.";
  const std::string whole = "['needs_full_param', 'cpu']";
  EXPECT_EQ(state_refusal("like = 'row'", whole), "manifest: components[0].state[0]." + dims);
  EXPECT_EQ(state_refusal("like = 'column'\nwhen_dims = [1, 2]", whole), "manifest: components[0].state[0]." + dims);
  EXPECT_EQ(state_refusal("like = 'row'\nwhen_dims = 2\nextent = 'full'", whole),
            "manifest: components[0].state[0].like: 'row' and 'column' need extent = 'shard' beside them.");
  EXPECT_EQ(state_refusal("like = 'row'\nwhen_dims = 2"),
            "manifest: components[0].traits: state 's' has a value a row or column, which needs the trait "
            "needs_full_param: a part of a parameter has not got whole ones.");
}

TEST(ManifestStates, RefusesAStateThatContradictsItself) {
  const std::string state = "manifest: components[0].state[0].";
  EXPECT_EQ(state_refusal("dtype = 'uint8'\ninit = 0.5"),
            state + "init: must be a whole number from 0 to 255 with dtype = 'uint8', got 0.5.");
  EXPECT_EQ(state_refusal("dtype = 'uint8'\ninit = 256"),
            state + "init: must be a whole number from 0 to 255 with dtype = 'uint8', got 256.");
  EXPECT_EQ(state_refusal("dtype = 'int8'\ninit = -129"),
            state + "init: must be a whole number from -128 to 127 with dtype = 'int8', got -129.");
  EXPECT_EQ(state_refusal("dtype = 'int64'\ninit = 0.5"),
            state + "init: must be a whole number with dtype = 'int64', got 0.5.");
  EXPECT_EQ(state_refusal("init = 'zero'"), state + "init: must be a number or \"param\", got \"zero\".");
  for (const char* beside : {"dtype = 'uint8'", "like = 'scalar'", "extent = 'model'"}) {
    EXPECT_EQ(state_refusal(std::string("init = 'param'\n") + beside),
              state + "init: 'param' is for a state with like = 'param', extent = 'shard' and a floating-point dtype.");
  }
  EXPECT_EQ(state_refusal("dtype = 'int8'\ndtype_from = 'wide'"),
            state +
                "dtype_from: cannot stand beside dtype = 'int8': the type that a model computes in would take the "
                "place of whole numbers.");
  EXPECT_EQ(state_refusal("when_names = 'wide'"),
            state + "when_names: 'wide' is not a parameter of this component of type string or string[].");
  EXPECT_EQ(state_refusal("when_dims = []"),
            state + "when_dims: must not be empty: no parameter would have the state.");
  for (const char* dims : {"-1", "65", "'2'", "[2, 1.5]"}) {
    EXPECT_THAT(state_refusal(std::string("when_dims = ") + dims),
                ::testing::StartsWith(state + "when_dims: must be a number of dimensions from 0 to 64, or a list of "
                                              "such numbers, got "));
  }
  EXPECT_EQ(state_refusal("when_min_numel = 9\nwhen_max_numel = 8"),
            state + "when_max_numel: is below when_min_numel.");
  EXPECT_EQ(state_refusal("extent = 'model'\nwhen_dims = 2"),
            state + "when_dims: asks about one parameter, and extent = 'model' is for all of them.");
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\nmeasures_model = 1\n"
                                   "traits = ['own_communication']")),
            "manifest: components[0].measures_model: cannot stand beside the trait own_communication, whose "
            "collectives() add up.");
}

}  // namespace
}  // namespace capstan
