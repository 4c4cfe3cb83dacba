#include "core/registry/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/registry/abi_version.hpp"
#include "tests/core/registry/manifest_text.hpp"

namespace capstan {
namespace {

using test::kAbi;
using test::parse;
using test::placed_refusal;
using test::refusal;
using test::with_component;
using test::with_param;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

const std::string kLion = R"(schema = 1
name = "acme-lion"
version = "1.2.0"
vendor = "Acme"
license = "MIT"
url = "https://acme.example/lion"

[[components]]
kind = "optimizer"
type = "Lion"
aliases = ["lion"]
summary = "sign-momentum optimizer"
traits = ["elementwise", "cpu", "cuda"]
measures = 2
[components.params]
lr = { type = "number", min = 0, required = true, per_group = true }
betas = { type = "number[2]", default = [0.9, 0.999], summary = "Decay of the averages." }
weight_decay = { type = "number", default = 0, aliases = ["decay"] }
mode = { type = ["string", "integer"], default = "fast", choices = ["fast", "exact"], nullable = true }
scale = { type = "number", exclusive_min = 0, exclusive_max = 1 }
low_precision = { type = "boolean", default = true }
[[components.state]]
name = "exp_avg"
when = "scale"
[[components.state]]
name = "norm"
like = "scalar"
dtype = "bfloat16"
dtype_from = "low_precision"
init = 1.5
extent = "model"
on_reshard = "reset"
scratch = true
)";

TEST(Manifest, ReadsWhatAnAuthorWrites) {
  const PluginManifest manifest = parse(kLion + kAbi);

  EXPECT_EQ(manifest.name, "acme-lion");
  EXPECT_EQ(manifest.version, "1.2.0");
  EXPECT_EQ(manifest.vendor, "Acme");
  EXPECT_EQ(manifest.license, "MIT");
  EXPECT_EQ(manifest.url, "https://acme.example/lion");
  EXPECT_EQ(manifest.abi_major, 1u);
  EXPECT_EQ(manifest.abi_minor, 0u);
  EXPECT_EQ(manifest.tier, PluginManifest::Tier::kStable);
  EXPECT_EQ(manifest.torch_min, "2.11");
  ASSERT_EQ(manifest.components.size(), 1u);
  const ComponentManifest& lion = manifest.components[0];
  EXPECT_EQ(lion.kind, "optimizer");
  EXPECT_EQ(lion.type, "Lion");
  EXPECT_EQ(lion.device, "cpu");
  EXPECT_THAT(lion.aliases, ElementsAre("lion"));
  EXPECT_EQ(lion.measures, 2);
  EXPECT_TRUE(lion.has_trait("elementwise"));
  EXPECT_FALSE(lion.has_trait("own_communication"));
}

TEST(Manifest, ReadsTheSchemaOfParameters) {
  const auto params = parse(kLion + kAbi).components[0].params;

  ASSERT_EQ(params.size(), 6u);
  EXPECT_EQ(params[0].name, "lr");
  EXPECT_EQ(params[0].type, KeySpec::Type::kNumber);
  EXPECT_TRUE(params[0].required);
  EXPECT_TRUE(params[0].per_group);
  EXPECT_EQ(params[0].minimum, 0.0);
  EXPECT_FALSE(params[0].exclusive_minimum);
  EXPECT_FALSE(params[0].fallback.has_value());
  EXPECT_EQ(params[1].type, KeySpec::Type::kArray);
  EXPECT_EQ(params[1].element, KeySpec::Type::kNumber);
  EXPECT_EQ(params[1].length, 2u);
  EXPECT_EQ(params[1].fallback->dump(), "[0.9,0.999]");
  EXPECT_EQ(params[1].summary, "Decay of the averages.");
  EXPECT_THAT(params[2].aliases, ElementsAre("decay"));
  EXPECT_EQ(params[3].type, KeySpec::Type::kString);
  EXPECT_THAT(params[3].also, ElementsAre(KeySpec::Type::kInteger));
  EXPECT_TRUE(params[3].nullable);
  EXPECT_EQ(params[3].choices.size(), 2u);
  EXPECT_TRUE(params[4].exclusive_minimum);
  EXPECT_TRUE(params[4].exclusive_maximum);
  EXPECT_EQ(params[4].maximum, 1.0);
}

TEST(Manifest, ReadsTheDeclaredState) {
  const auto state = parse(kLion + kAbi).components[0].state;

  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].name, "exp_avg");
  EXPECT_EQ(state[0].like, StateSpec::Like::kParameter);
  EXPECT_EQ(state[0].dtype, "float32");
  EXPECT_EQ(state[0].extent, StateSpec::Extent::kShard);
  EXPECT_EQ(state[0].when, "scale");
  EXPECT_FALSE(state[0].reset_on_reshard);
  EXPECT_EQ(state[1].like, StateSpec::Like::kScalar);
  EXPECT_EQ(state[1].dtype, "bfloat16");
  EXPECT_EQ(state[1].dtype_from, "low_precision");
  EXPECT_EQ(state[1].init, 1.5);
  EXPECT_EQ(state[1].extent, StateSpec::Extent::kModel);
  EXPECT_TRUE(state[1].reset_on_reshard);
  EXPECT_TRUE(state[1].scratch);
}

TEST(Manifest, PrintsItselfAsJsonThatSaysTheSame) {
  const Json json = parse(kLion + kAbi).to_json();

  EXPECT_EQ(json.at("schema").as_integer(), 1);
  EXPECT_EQ(json.at("abi").dump(), R"({"capstan":"1.0","torch":{"tier":"stable","min":"2.11"}})");
  const Json& lion = json.at("components").as_array()[0];
  EXPECT_EQ(lion.at("params").at("betas").dump(),
            R"({"type":"number[2]","default":[0.9,0.999],"summary":"Decay of the averages."})");
  EXPECT_EQ(lion.at("params").at("mode").dump(),
            R"({"type":["string","integer"],"nullable":true,"default":"fast","choices":["fast","exact"]})");
  EXPECT_EQ(lion.at("params").at("scale").dump(), R"({"type":"number","exclusive_min":0.0,"exclusive_max":1.0})");
  EXPECT_EQ(lion.at("state").as_array()[0].dump(),
            R"({"name":"exp_avg","like":"param","dtype":"float32","when":"scale","init":0.0,)"
            R"("extent":"shard","on_reshard":"reshard"})");
  EXPECT_EQ(lion.at("state").as_array()[1].dump(),
            R"({"name":"norm","like":"scalar","dtype":"bfloat16","dtype_from":"low_precision","init":1.5,)"
            R"("extent":"model","on_reshard":"reset","scratch":true})");
  EXPECT_EQ(lion.at("traits").dump(), R"(["elementwise","cpu","cuda"])");
}

TEST(Manifest, ReadsEachTier) {
  const std::string head =
      "schema = 1\nname = 'n'\nversion = '1'\n[[components]]\nkind = 'observer'\ntype = 'T'\n"
      "attach = ['events', 'batch']\n[abi]\nplugin = '1.0'\n[abi.torch]\n";

  EXPECT_EQ(parse(head + "tier = 'none'").tier, PluginManifest::Tier::kNone);
  const auto pinned = parse(head + "tier = 'pinned'\nversion = '2.11.0'\nbuild_id = 'fb74'\ncuda = '13.0'");
  EXPECT_EQ(pinned.torch_version, "2.11.0");
  EXPECT_EQ(pinned.torch_build_id, "fb74");
  EXPECT_EQ(pinned.cuda, "13.0");
  EXPECT_TRUE(pinned.components[0].attaches("batch"));
  EXPECT_FALSE(pinned.components[0].attaches("layers"));
}

TEST(Manifest, ReadsTheModelTypesThatAModelTakes) {
  const std::string model = "kind = 'model'\ntype = 'T'\n", config = "params.config = { type = 'object' }\n";
  const PluginManifest manifest = parse(with_component(model + config + "model_types = ['llama', 'qwen2']\n"));
  EXPECT_THAT(manifest.components[0].model_types, ElementsAre("llama", "qwen2"));
  EXPECT_TRUE(manifest.components[0].takes_model_type("qwen2"));
  EXPECT_FALSE(manifest.components[0].takes_model_type("qwen"));
  EXPECT_EQ(manifest.to_json().at("components").as_array()[0].at("model_types").dump(), R"(["llama","qwen2"])");
  EXPECT_EQ(refusal(with_component(model + config + "model_types = ['llama', 'llama']\n")),
            "manifest: components[0].model_types: names 'llama' twice.");
  EXPECT_EQ(refusal(with_component(model + config + "model_types = 'llama'\n")),
            "manifest: components[0].model_types: must be a list of names, got \"llama\".");
  EXPECT_EQ(
      refusal(with_component(model + "model_types = ['llama']\nparams.config = { type = 'string' }\n")),
      "manifest: components[0].model_types: needs a parameter 'config' of type 'object', which takes the contents of "
      "config.json. Add params.config = { type = \"object\" }.");
  EXPECT_EQ(refusal(with_component("kind = 'observer'\ntype = 'T'\nmodel_types = ['llama']")),
            "manifest: components[0].model_types: unknown key.");
}

TEST(Manifest, ReadsTheOrderOfCompressions) {
  const auto order_of = [](const std::string& more) {
    return parse(with_component("kind = 'compression'\ntype = 'T'\n" + more)).components[0].order;
  };
  EXPECT_EQ(order_of("order = 10"), 10);
  EXPECT_EQ(order_of("order = 0"), 0);
  EXPECT_EQ(order_of(""), 50);
  EXPECT_EQ(refusal(with_component("kind = 'compression'\ntype = 'T'\norder = 100")),
            "manifest: components[0].order: must be from 0 to 99, got 100.");
  EXPECT_EQ(refusal(with_component("kind = 'compression'\ntype = 'T'\norder = -1")),
            "manifest: components[0].order: must be from 0 to 99, got -1.");
  const auto layer_order_of = [](const std::string& more) {
    return parse(with_component("kind = 'observer'\ntype = 'T'\n" + more)).components[0].layer_order;
  };
  EXPECT_EQ(layer_order_of("attach = ['layers']\nlayer_order = 20"), 20);
  EXPECT_EQ(layer_order_of("attach = ['layers']"), 50);
  EXPECT_EQ(refusal(with_component("kind = 'observer'\ntype = 'T'\nattach = ['layers']\nlayer_order = 100")),
            "manifest: components[0].layer_order: must be from 0 to 99, got 100.");
  EXPECT_EQ(refusal(with_component("kind = 'observer'\ntype = 'T'\nattach = ['events']\nlayer_order = 20")),
            "manifest: components[0].layer_order: unknown key.");
  EXPECT_EQ(refusal(with_component("kind = 'observer'\ntype = 'T'\nattach = ['events']\norder = 10")),
            "manifest: components[0].order: unknown key.");
}

TEST(Manifest, RefusesAnAbiFromBeforeTheFirstReleaseAsOlder) {
  for (const char* version : {"1.12", "1.0"}) {
    EXPECT_EQ(refusal("schema = 1\nsomething_old = 1\n[abi]\ncapstan = '" + std::string(version) + "'\n"),
              "built for plugin ABI " + std::string(version) +
                  " from before Capstan's first release, which is older than the " + abi_version() +
                  " that this engine speaks. Rebuild it with the SDK of this release.");
  }
}

TEST(Manifest, RefusesAnotherAbiAndSaysWhatToDo) {
  const auto with_abi = [](const std::string& version) {
    return "schema = 1\nsomething_new = 1\n[abi]\nplugin = '" + version + "'\n";
  };

  EXPECT_EQ(refusal(with_abi("2.0")),
            "built for Capstan plugin ABI 2.0, this engine speaks " + abi_version() +
                ". Rebuild it with the SDK of this release, or install a Capstan that speaks 2.x.");
  const std::string next = abi_version(CAPSTAN_ABI_MINOR + 1);
  EXPECT_EQ(refusal(with_abi(next)),
            "built for Capstan plugin ABI " + next + ", this engine speaks " + abi_version() +
                ". Rebuild it with the SDK of this release, or install a Capstan that speaks " + next + ".");
  EXPECT_EQ(refusal(with_abi("0.9")), "built for Capstan plugin ABI 0.9, this engine speaks " + abi_version() +
                                          ". Rebuild it with the SDK of this release.");
  EXPECT_THAT(refusal(with_abi("one")),
              ::testing::HasSubstr("manifest: abi.plugin: must be a version such as \"1.0\", got 'one'."));
}

TEST(Manifest, RefusesASchemaItDoesNotKnow) {
  EXPECT_EQ(refusal("schema = 2\n"),
            "manifest: schema: must be 1 in this release, got 2. Rebuild it with the SDK of this release, or install a "
            "newer Capstan.");
  EXPECT_THAT(refusal("name = 'n'\n"), ::testing::HasSubstr("manifest: schema: must be 1 in this release."));
}

TEST(Manifest, NamesUnknownKeysAndTheOneMeant) {
  EXPECT_EQ(refusal(with_component("kind = 'monitor'\ntype = 'T'\nsumary = 'x'")),
            "manifest: components[0].sumary: unknown key. Did you mean 'summary'?");
  EXPECT_EQ(refusal(with_param("{ type = 'number', defualt = 1 }")),
            "manifest: components[0].params.p.defualt: unknown key. Did you mean 'default'?");
  EXPECT_EQ(refusal(with_component("kind = 'monitor'\ntype = 'T'\nattach = ['events']")),
            "manifest: components[0].attach: unknown key.");
}

TEST(Manifest, NamesWhatIsMissingOrOfAnotherType) {
  EXPECT_EQ(refusal("schema = 1\n" + std::string(kAbi)),
            "manifest: name: is missing.\n  manifest: version: is missing.\n"
            "  manifest: components: is missing: a plugin must provide at least one.");
  const auto with_name = [](const std::string& name) {
    return "schema = 1\nversion = '1'\nname = " + name + "\n[[components]]\nkind = 'monitor'\ntype = 'T'\n" + kAbi;
  };
  EXPECT_EQ(refusal(with_name("3")), "manifest: name: must be a string, got 3.");
  EXPECT_EQ(refusal(with_name("'a b'")),
            "manifest: name: must be made of letters, digits, '_', '-', '.' and '+', got 'a b'.");
  EXPECT_EQ(refusal("schema = 1\nname = 'n'\nversion = '1'\n" + std::string(kAbi)),
            "manifest: components: is missing: a plugin must provide at least one.");
  EXPECT_EQ(
      refusal("schema = 1\nname = 'n'\nversion = '1'\ncomponents = [{ kind = 'monitor', type = 'T' }]\nabi = 1\n"),
      "manifest: abi: must be a table, got 1.");
  EXPECT_EQ(refusal(with_component("type = 'T'")), "manifest: components[0].kind: is missing.");
  EXPECT_EQ(
      refusal(with_component("kind = 'optimiser'\ntype = 'T'")),
      "manifest: components[0].kind: must be one of optimizer, scheduler, monitor, model, observer, offload, "
      "compression, dataset, sampler, metric, pacing, attention, tuner, accelerator, got 'optimiser'. Did you mean "
      "'optimizer'?");
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\ntraits = ['elementwize']")),
            "manifest: components[0].traits: 'elementwize' is not one of elementwise, needs_param_norm, "
            "needs_full_param, needs_full_gradient, needs_dynamic_loss_scale, sparse_rows, own_communication, "
            "graph_safe, cpu, cuda. Did you mean 'elementwise'?");
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\nmeasures = 65")),
            "manifest: components[0].measures: must be from 0 to 64, got 65.");
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\n[[components.state]]\nname = 's'\ndtype = 'fp8'")),
            "manifest: components[0].state[0].dtype: must be one of float32, bfloat16, float16, int64, uint8, int8, "
            "param, got 'fp8'.");
  EXPECT_EQ(
      refusal(with_component("kind = 'optimizer'\ntype = 'T'\n[[components.state]]\nname = 's'\ndtype_from = 'wide'")),
      "manifest: components[0].state[0].dtype_from: 'wide' is not a boolean parameter of this component.");
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\n[[components.state]]\nname = 's'\nwhen = 'wide'")),
            "manifest: components[0].state[0].when: 'wide' is not a boolean or numeric parameter of this component.");
}

TEST(Manifest, ChecksParametersAgainstTheirOwnSchema) {
  EXPECT_EQ(refusal(with_param("{ default = 1 }")),
            "manifest: components[0].params.p.type: is missing. Write type = \"number\", or another type.");
  EXPECT_EQ(refusal(with_param("{ type = 'numbr' }")),
            "manifest: components[0].params.p.type: 'numbr' is not a type. Did you mean 'number'?");
  EXPECT_EQ(refusal(with_param("{ type = 'number[two]' }")),
            "manifest: components[0].params.p.type: 'number[two]' is not a type: a list is written 'number[]', or "
            "'number[2]' with its length.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', default = 'one' }")),
            "manifest: components[0].params.p.default: \"one\" is not of the parameter's type.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', exclusive_min = 0, default = 0 }")),
            "manifest: components[0].params.p.default: 0 is outside the parameter's range.");
  EXPECT_EQ(refusal(with_param("{ type = 'number[2]', default = [1] }")),
            "manifest: components[0].params.p.default: must have 2 elements, has 1.");
  EXPECT_EQ(refusal(with_param("{ type = 'number[]', exclusive_max = 1, default = [0.5, 1] }")),
            "manifest: components[0].params.p.default: element 1 is outside the parameter's range.");
  EXPECT_EQ(refusal(with_param("{ type = 'string[]', default = ['a', 1] }")),
            "manifest: components[0].params.p.default: element 1 is not of the parameter's type.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', required = true, default = 1 }")),
            "manifest: components[0].params.p.default: cannot stand beside required = true.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', min = 0, exclusive_min = 0 }")),
            "manifest: components[0].params.p.exclusive_min: cannot stand beside 'min'.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', min = 2, max = 1 }")),
            "manifest: components[0].params.p.max: is below the minimum.");
  EXPECT_EQ(refusal(with_param("{ type = 'string', choices = [] }")),
            "manifest: components[0].params.p.choices: must be a list of values.");
  EXPECT_EQ(refusal(with_component("kind = 'monitor'\ntype = 'T'\n[components.params]\na = {type = 'any', aliases = "
                                   "['b']}\nb = {type = 'any'}\n")),
            "manifest: components[0].params: 'b' is the name or alias of two parameters.");
  EXPECT_EQ(refusal(with_param("{ type = 'number', per_group = true, default = [0.1, 0.2] }")), "accepted");
}

TEST(Manifest, NamesEverythingThatIsWrongWithItsPlaceInTheOrderOfTheText) {
  EXPECT_EQ(placed_refusal("schema = 1\nname = 'n'\nverson = '1.0.0'\n[[components]]\nkind = 'optimizer'\ntype = 'T'\n"
                           "traits = ['elementwize', 'cpu']\nparams.lr = { tpye = 'number', min = 'a' }\n"
                           "state = [{ name = 's', dtype = 'fp8', block = 4 }]\n" +
                           std::string(kAbi)),
            "manifest:3:1: verson: unknown key. Did you mean 'version'?\n"
            "  manifest:7:1: components[0].traits: 'elementwize' is not one of elementwise, needs_param_norm, "
            "needs_full_param, needs_full_gradient, needs_dynamic_loss_scale, sparse_rows, own_communication, "
            "graph_safe, cpu, cuda. "
            "Did you mean 'elementwise'?\n"
            "  manifest:8:15: components[0].params.lr.tpye: unknown key. Did you mean 'type'?\n"
            "  manifest:8:32: components[0].params.lr.min: must be a number, got \"a\".\n"
            "  manifest:9:24: components[0].state[0].dtype: must be one of float32, bfloat16, float16, int64, uint8, "
            "int8, param, got 'fp8'.\n"
            "  manifest:9:39: components[0].state[0].block: is for like = 'block', and like is 'param'.");
}

TEST(Manifest, NamesAtMostTwentyErrors) {
  std::string lines;
  for (int i = 0; i < 25; ++i) lines += "zzz" + std::to_string(i) + " = 1\n";
  EXPECT_THAT(refusal(with_component("kind = 'monitor'\ntype = 'T'\n" + lines)),
              ::testing::EndsWith("zzz19: unknown key.\n  and 5 more errors."));
}

TEST(Manifest, ReadsThePackageOfPythonThatAComponentNeeds) {
  const std::string monitor = "kind = 'monitor'\ntype = 'T'\npython_package = ";
  for (const char* package : {"wandb", "comet_ml>=3.41.0", "a.b-c>=1"}) {
    const PluginManifest manifest = parse(with_component(monitor + "'" + package + "'"));
    EXPECT_EQ(manifest.components[0].python_package, package);
    EXPECT_EQ(manifest.to_json().at("components").as_array()[0].at("python_package").as_string(), package);
  }
  for (const char* wrong : {"wandb>=", "wandb==1.0", "-r file", "wandb>=1.2.3.4", "a b", "x; rm"}) {
    EXPECT_EQ(
        refusal(with_component(monitor + "'" + wrong + "'")),
        "manifest: components[0].python_package: must be a package's name, or one with its oldest version such as "
        "\"wandb>=0.16.0\", got '" +
            std::string(wrong) + "'.");
  }
}

TEST(Manifest, WantsASemanticVersion) {
  const auto with_version = [](const std::string& version) {
    return "schema = 1\nname = 'n'\nversion = '" + version + "'\n[[components]]\nkind = 'monitor'\ntype = 'T'\n" + kAbi;
  };
  for (const char* good : {"1", "0.1", "1.2.0", "1.2.0-rc.1", "1.2.0+build.7", "1.2.0-rc.1+a-b"}) {
    EXPECT_EQ(refusal(with_version(good)), "accepted") << good;
  }
  for (const char* bad : {"banana", "1.2.3.4", "1.", "v1.0", "1.0-", "1.0+", "1.0-a..b", "1.0 "}) {
    EXPECT_EQ(refusal(with_version(bad)),
              "manifest: version: must be a semantic version such as \"1.2.0\" or \"1.2.0-rc.1\", got '" +
                  std::string(bad) + "'.");
  }
}

std::string with_traits(const std::string& lines) { return with_component("kind = 'optimizer'\ntype = 'T'\n" + lines); }

TEST(Manifest, RefusesTraitsThatContradictEachOther) {
  const std::string traits = "manifest: components[0].traits: ";
  for (const std::string parts : {"elementwise", "needs_param_norm"}) {
    EXPECT_EQ(refusal(with_traits("measures = 1\ntraits = ['cpu', 'needs_full_param', '" + parts + "']")),
              traits + "'" + parts +
                  "' cannot stand beside 'needs_full_param': with the one, an optimizer gets parts of parameters, with "
                  "the other whole ones. Keep one of them.");
  }
  EXPECT_EQ(refusal(with_traits("traits = ['needs_param_norm', 'cpu']")),
            traits +
                "'needs_param_norm' needs measures = k beside it: an optimizer with this trait gets parts of "
                "parameters and the sums of its function measure. Write how many sums, or take "
                "'needs_full_param'.");
  EXPECT_EQ(refusal(with_traits("measures_model = 1\ntraits = ['needs_param_norm', 'cpu']")), "accepted");
}

TEST(Manifest, WarnsOfAHostOptimizerThatDoesNotSayCpu) {
  const std::string warning =
      "manifest:5:1: components[0].traits: 'cpu' is missing, so a configuration that offloads the optimizer refuses "
      "this one. Add it: with device = 'cpu' it updates on the host anyway.";
  const auto warnings = [](const std::string& lines) {
    return parse("schema = 1\nname = 'n'\nversion = '1'\n[[components]]\n" + lines + kAbi).warnings;
  };
  EXPECT_THAT(warnings("traits = []\nkind = 'optimizer'\ntype = 'T'\n"), ElementsAre(warning));
  EXPECT_THAT(warnings("traits = ['elementwise']\nkind = 'optimizer'\ntype = 'T'\n"), ElementsAre(warning));
  EXPECT_THAT(warnings("traits = ['cpu']\nkind = 'optimizer'\ntype = 'T'\n"), ElementsAre());
  EXPECT_THAT(warnings("traits = ['cuda']\ndevice = 'cuda'\nkind = 'optimizer'\ntype = 'T'\n"), ElementsAre());
}

TEST(Manifest, NamesTheDeviceThatAComponentIsFor) {
  const auto device_of = [](const std::string& line) {
    return parse(with_component("kind = 'observer'\ntype = 'T'\n" + line)).components.front().device;
  };
  EXPECT_EQ(device_of(""), "cpu");
  EXPECT_EQ(device_of("device = 'npu'\n"), "npu");
  EXPECT_EQ(device_of("devices = 'any'\n"), "any");
  const auto refused = [](const std::string& line) {
    return refusal(with_component("kind = 'observer'\ntype = 'T'\n" + line));
  };
  EXPECT_THAT(refused("device = 'NPU 3'\n"),
              HasSubstr("device: must be \"cpu\" or the type of an accelerator, such as \"cuda\", got 'NPU 3'."));
  EXPECT_THAT(refused("devices = 'all'\n"),
              HasSubstr("devices: must be \"any\", got 'all'. A component that is made for one device has 'device'."));
  EXPECT_THAT(refused("device = 'npu'\ndevices = 'any'\n"), HasSubstr("'device' names one. Leave one out."));
}

TEST(Manifest, RefusesATypeThatItProvidesTwice) {
  EXPECT_EQ(placed_refusal("schema = 1\nname = 'n'\nversion = '1'\n[[components]]\nkind = 'monitor'\ntype = 'T'\n"
                           "aliases = ['t2']\n[[components]]\nkind = 'monitor'\ntype = 'T2'\n[[components]]\n"
                           "kind = 'observer'\ntype = 'T2'\n" +
                           std::string(kAbi)),
            "manifest:10:1: components[1].type: 'T2' is provided twice.");
}

TEST(Manifest, ReadsRulesBetweenParameters) {
  const auto manifest =
      parse(with_component("kind = 'scheduler'\ntype = 'T'\nparams.warmup = { type = 'integer', default = 5 }\n"
                           "params.total = { type = 'integer', required = true }\nrules = [\n"
                           "{ check = 'warmup <= total', message = '{warmup} is more than total, {total}.' },\n"
                           "{ check = 'total > 1', message = 'is short.', level = 'warning' }]"));
  const auto& rules = manifest.components[0].rules;
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_FALSE(rules[0].only_warns);
  EXPECT_TRUE(rules[1].only_warns);
  EXPECT_EQ(rules[0].breach(Json::parse(R"({"warmup": 5, "total": 4})")), "5 is more than total, 4.");
  EXPECT_EQ(rules[0].breach(Json::parse(R"({"warmup": 4, "total": 4})")), std::nullopt);
  EXPECT_EQ(rules[0].breach(Json::parse(R"({"warmup": 4})")), std::nullopt);
  EXPECT_EQ(manifest.to_json().at("components").as_array()[0].at("rules").dump(),
            R"([{"check":"warmup <= total","message":"{warmup} is more than total, {total}."},)"
            R"({"check":"total > 1","message":"is short.","level":"warning"}])");
}

TEST(Manifest, RefusesRulesThatCannotBeRead) {
  const auto rule_refusal = [](const std::string& rule) {
    return refusal(
        with_component("kind = 'scheduler'\ntype = 'T'\nparams.warmup = { type = 'integer', default = 5 }\n"
                       "params.total = { type = 'integer', default = 9 }\nrules = [{ " +
                       rule + " }]"));
  };
  const std::string path = "manifest: components[0].rules[0].";
  EXPECT_EQ(rule_refusal("check = 'warmpu <= total', message = 'm'"),
            path +
                "check: \"warmpu <= total\": at character 1: 'warmpu' is not a parameter of this component. Did you "
                "mean 'warmup'?");
  EXPECT_EQ(rule_refusal("check = 'warmup <=', message = 'm'"),
            path + "check: \"warmup <=\": at character 10: expected a parameter or a value, found the end.");
  EXPECT_EQ(rule_refusal("check = 'warmup + total', message = 'm'"),
            path + "check: \"warmup + total\": must be true or false, such as \"a <= b\".");
  EXPECT_EQ(rule_refusal("check = '1 < 2', message = 'm'"), path + "check: \"1 < 2\": names no parameter.");
  EXPECT_EQ(rule_refusal("check = 'warmup <= total', message = '{totl} is short.'"),
            path +
                "message: \"{totl} is short.\": '{totl}': at character 1: 'totl' is not a parameter of this "
                "component. Did you mean 'total'?");
  EXPECT_EQ(rule_refusal("check = 'warmup <= total', message = '{total'"),
            path + "message: \"{total\": a '{' is not closed by '}'.");
  EXPECT_EQ(rule_refusal("chekc = 'warmup <= total', message = 'm'"),
            path + "chekc: unknown key. Did you mean 'check'?");
  EXPECT_EQ(rule_refusal("check = 'warmup <= total'"), path + "message: is missing.");
  EXPECT_EQ(rule_refusal("check = 'warmup > total', message = 'm'"),
            path + "check: \"warmup > total\": the defaults of the parameters break this rule.");
}

TEST(Manifest, RefusesADefaultThatIsNotTheRegularExpressionThatAStateTakesItFor) {
  EXPECT_EQ(refusal(with_component("kind = 'optimizer'\ntype = 'T'\ntraits = ['cpu']\n"
                                   "params.names = { type = 'string[]', default = ['emb', '('] }\n"
                                   "state = [{ name = 's', when_names = 'names' }]")),
            "manifest: components[0].state[0].when_names: the default of 'names': \"(\" is not a regular expression.");
}

TEST(Manifest, SaysWhereTheTomlIsWrong) {
  EXPECT_THAT(placed_refusal("schema = 1\nname = = 2\n"), ::testing::StartsWith("manifest:2:8: not valid TOML: "));
}

TEST(Manifest, KeepsTheBytesItWasReadFrom) { EXPECT_EQ(parse(kLion + kAbi).text, kLion + kAbi); }

}  // namespace
}  // namespace capstan
