#include "core/config/resolve/components.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/config/config.hpp"
#include "core/config/language/language.hpp"
#include "core/config/resolve/switched_sections.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A plugin "<type>.so" with one component.
IndexedPlugin plugin(const std::string& kind, const std::string& type, const std::string& section,
                     const std::string& params = "") {
  const std::string file = type + ".so";
  return {file,
          PluginManifest::parse("schema = 1\nname = \"test\"\nversion = \"1.0\"\n[abi]\nplugin = \"1.0\"\n"
                                "[abi.torch]\ntier = \"none\"\n[[components]]\nkind = \"" +
                                    kind + "\"\ntype = \"" + type + "\"\nsection = \"" + section + "\"\n" + params,
                                file)};
}

/// Parameters that take these members of a section.
std::string takes(const std::vector<std::string>& members) {
  std::string params = "[components.params]\n";
  for (const std::string& member : members) params += member + " = { type = \"object\" }\n";
  return params;
}

struct Chosen {
  std::vector<std::string> observers, monitors, compressions, problems;
  std::map<std::string, Json> params;
};

/// What a configuration chooses by its sections, and every problem but the notice on gradient_clipping.
Chosen read(const std::string& sections, std::vector<IndexedPlugin> plugins) {
  ConfigText text;
  text.source = "c.json";
  text.text = R"({"train_batch_size": 8, "gradient_clipping": 1.0, )" + sections + "}";
  const ConfigReading reading = read_config(text, {}, PluginIndex::of(std::move(plugins)));
  Chosen chosen;
  for (const Problem& problem : reading.problems.all())
    chosen.problems.push_back(problem.path + ": " + problem.message);
  if (!reading.config) return chosen;
  for (const ComponentChoice& one : reading.config->observers) {
    chosen.observers.push_back(one.type);
    chosen.params[one.type] = one.params;
  }
  for (const ComponentChoice& one : reading.config->monitors) chosen.monitors.push_back(one.type);
  for (const ComponentChoice& one : reading.config->compressions) {
    chosen.compressions.push_back(one.type);
    chosen.params[one.type] = one.params;
  }
  return chosen;
}

constexpr const char* kRows = R"("compression_training": {"row_pruning": {
  "shared_parameters": {"enabled": true, "method": "l1"},
  "different_groups": {"rp1": {"params": {"dense_ratio": 0.5}, "modules": ["fc"]}}}})";
constexpr const char* kRowsAndSparse = R"("compression_training": {
  "row_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
    "different_groups": {"rp1": {"params": {"dense_ratio": 0.5}, "modules": ["fc"]}}},
  "sparse_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
    "different_groups": {"sp1": {"params": {"dense_ratio": 0.5}, "modules": ["fc"]}}}})";
constexpr const char* kWeights = R"("compression_training": {"weight_quantization": {
  "shared_parameters": {"enabled": true, "quantize_weight_in_forward": true},
  "different_groups": {"wq1": {"params": {"start_bits": 4, "target_bits": 4}, "modules": ["fc"]}}}})";
constexpr const char* kNoRows =
    "compression_training.row_pruning.shared_parameters.enabled: no installed compression carries out the section "
    "'compression_training.row_pruning'; one comes with Capstan.";

TEST(Sections, AMethodIsNotCarriedOutByThePluginOfAnotherMethodOfTheSection) {
  const Chosen chosen = read(kRows, {plugin("observer", "sparse_pruning", "compression_training")});
  EXPECT_THAT(chosen.problems, ElementsAre(HasSubstr(kNoRows)));
}

TEST(Sections, EveryMethodThatIsSwitchedOnHasThePluginOfItsType) {
  const Chosen chosen =
      read(kRowsAndSparse, {plugin("observer", "sparse_pruning", "compression_training", takes({"sparse_pruning"})),
                            plugin("observer", "head_pruning", "compression_training"),
                            plugin("observer", "row_pruning", "compression_training", takes({"row_pruning"}))});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_THAT(chosen.observers, ElementsAre("sparse_pruning", "row_pruning"));
}

TEST(Sections, EveryMethodThatIsSwitchedOnWithoutItsPluginIsReported) {
  const Chosen chosen = read(kRowsAndSparse, {plugin("observer", "head_pruning", "compression_training")});
  EXPECT_THAT(chosen.problems, ElementsAre(HasSubstr(kNoRows),
                                           HasSubstr("carries out the section 'compression_training.sparse_pruning'")));
}

TEST(Sections, APluginMayNameANestedSectionAndGetsItsKeys) {
  const Chosen chosen = read(kRows, {plugin("observer", "AcmeRows", "compression_training.row_pruning",
                                            takes({"shared_parameters", "different_groups"}))});
  EXPECT_THAT(chosen.problems, IsEmpty());
  ASSERT_THAT(chosen.observers, ElementsAre("AcmeRows"));
  EXPECT_EQ(chosen.params.at("AcmeRows").at("shared_parameters").at("method"), Json("l1"));
}

TEST(Sections, ACompressionCarriesOutAMethodOfCompressionTrainingAndGetsItsKeys) {
  const Chosen chosen = read(kWeights, {plugin("compression", "AcmeBits", "compression_training.weight_quantization",
                                               takes({"shared_parameters", "different_groups"}))});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_THAT(chosen.observers, IsEmpty());
  ASSERT_THAT(chosen.compressions, ElementsAre("AcmeBits"));
  const Json& shared = chosen.params.at("AcmeBits").at("shared_parameters");
  EXPECT_EQ(shared.at("quantization_type"), Json("symmetric"));  // the default of a key that is not given
  EXPECT_EQ(chosen.params.at("AcmeBits").at("different_groups").at("wq1").at("params").at("target_bits"), Json(4));
  EXPECT_THAT(read(kRows, {plugin("compression", "AcmeRows", "compression_training.row_pruning")}).compressions,
              ElementsAre("AcmeRows"));
}

TEST(Sections, AnObserverGoesOnCarryingOutWhatCompressionsMayCarryOut) {
  const auto observer = plugin("observer", "Older", "compression_training.weight_quantization");
  const auto compression = plugin("compression", "Newer", "compression_training.weight_quantization");
  EXPECT_THAT(read(kWeights, {observer}).observers, ElementsAre("Older"));
  // Of two that fit alike, the search path has the say.
  EXPECT_THAT(read(kWeights, {observer, compression}).compressions, IsEmpty());
  EXPECT_THAT(read(kWeights, {compression, observer}).compressions, ElementsAre("Newer"));
}

TEST(Sections, AMethodWithoutItsCompressionIsMissed) {
  EXPECT_THAT(
      read(kWeights, {}).problems,
      ElementsAre("compression_training.weight_quantization.shared_parameters.enabled: no installed compression "
                  "carries out the section 'compression_training.weight_quantization'; one comes with "
                  "Capstan.\n  looked in: no folder"));
}

TEST(Sections, ACompressionMayHaveASectionOfItsOwnOrBeListed) {
  const auto squeeze = [](const std::string& section) {
    return plugin("compression", "acme_squeeze", section,
                  "[components.params]\nbits = { type = \"integer\", default = 8, min = 2, max = 8 }\n");
  };
  const Chosen own = read(R"("acme": {"enabled": true, "bits": 4})", {squeeze("acme")});
  EXPECT_THAT(own.problems, IsEmpty());
  ASSERT_THAT(own.compressions, ElementsAre("acme_squeeze"));
  EXPECT_EQ(own.params.at("acme_squeeze").at("bits"), Json(4));
  const Chosen listed =
      read(R"("capstan": {"compressions": [{"type": "ACME_squeeze"}, {"type": "acme_squeeze"}]})", {squeeze("acme")});
  EXPECT_THAT(listed.compressions, ElementsAre("acme_squeeze", "acme_squeeze"));
  EXPECT_EQ(listed.params.at("acme_squeeze").at("bits"), Json(8));
  EXPECT_THAT(
      read(R"("capstan": {"compressions": [{"type": "acme_squeeze"}]})", {squeeze("aio")}).problems,
      ElementsAre("aio: acme_squeeze.so: its compression 'acme_squeeze' is never chosen by this section, which "
                  "switches on no compression, and gets none of its keys. List it in capstan.compressions, with "
                  "parameters of its own."));
}

TEST(Sections, TheNestedSectionIsACloserFitThanTheOneAroundIt) {
  const Chosen chosen =
      read(kRowsAndSparse, {plugin("observer", "everything", "compression_training", takes({"sparse_pruning"})),
                            plugin("observer", "AcmeRows", "compression_training.row_pruning",
                                   takes({"shared_parameters", "different_groups"}))});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_THAT(chosen.observers, ElementsAre("everything", "AcmeRows"));
}

TEST(Sections, APluginOfTheWholeSectionIsChosenOnceForAllItsMethods) {
  const Chosen chosen =
      read(kRowsAndSparse,
           {plugin("observer", "compression", "compression_training", takes({"row_pruning", "sparse_pruning"}))});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_THAT(chosen.observers, ElementsAre("compression"));
}

TEST(Sections, TheMethodsOfDataEfficiencyAreChosenOneByOne) {
  const std::string text = R"("data_efficiency": {"enabled": true, "data_routing": {"enabled": true, "random_ltd": {
    "enabled": true, "total_layer_num": 4, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 2],
    "model_mask_name": null, "model_type": "decoder", "hidden_state_order": "batch_seq_dim", "random_ltd_schedule": {
      "min_value": 16, "max_value": 64, "schedule_type": "fixed_linear",
      "schedule_config": {"require_steps": 10, "seq_per_step": 8}}}}})";
  EXPECT_THAT(
      read(text, {plugin("sampler", "curriculum_learning", "data_efficiency")}).problems,
      ElementsAre(HasSubstr("no installed observer carries out the section 'data_efficiency.data_routing.random_ltd'; "
                            "one comes with Capstan")));
  EXPECT_THAT(read(text, {plugin("observer", "random_ltd", "data_efficiency")}).observers, ElementsAre("random_ltd"));
}

TEST(Sections, ARefusalIsSaidOnce) {
  EXPECT_THAT(read(R"("nebula": {"enabled": true})", {}).problems,
              ElementsAre("nebula.enabled: the section 'nebula' is not in this release, and no installed "
                          "plugin acts on it. Remove it, or install a plugin whose manifest says section = "
                          "\"nebula\"."));
  EXPECT_THAT(read(R"("sequence_parallel_size": 2)", {}).problems,
              Contains("sequence_parallel_size: the key 'sequence_parallel_size' is not in this release, and no "
                       "installed plugin acts on it. Remove it, or install a plugin whose manifest says section = "
                       "\"sequence_parallel_size\"."));
}

TEST(Sections, APluginThatComesWithCapstanIsMissedByItsKind) {
  EXPECT_THAT(read(R"("wandb": {"enabled": true})", {}).problems,
              ElementsAre("wandb.enabled: no installed monitor carries out the section 'wandb'; one comes with "
                          "Capstan.\n  looked in: no folder"));
}

TEST(Sections, TheFoldersThatWereSearchedAreNamedOnce) {
  EXPECT_THAT(
      read(R"("wandb": {"enabled": true}, "comet": {"enabled": true}, "sqlite_monitor": {"enabled": true})", {})
          .problems,
      ElementsAre(
          "wandb.enabled: no installed monitor carries out the section 'wandb'; one comes with Capstan.\n"
          "  looked in: no folder",
          "comet.enabled: no installed monitor carries out the section 'comet'; one comes with Capstan.",
          "sqlite_monitor: unknown key. If it is the section of a monitor, an observer or a compression, its plugin "
          "is not installed where it was looked for; if it is an option of another program, move it there or begin it "
          "with '_'."));
}

TEST(Sections, ParametersOfAMonitorKeepTheRulesOfItsManifest) {
  const std::string params =
      "[components.params]\nfirst = { type = \"integer\", default = 0 }\nlast = { type = \"integer\", default = 9 }\n"
      "[[components.rules]]\ncheck = \"first <= last\"\nmessage = \"{first} is behind last, {last}.\"\n";
  EXPECT_THAT(
      read(R"("acme_log": {"enabled": true, "first": 10})", {plugin("monitor", "acme", "acme_log", params)}).problems,
      ElementsAre("acme_log.first: 10 is behind last, 9."));
  EXPECT_THAT(
      read(R"("acme_log": {"enabled": true, "first": 9})", {plugin("monitor", "acme", "acme_log", params)}).problems,
      IsEmpty());
}

TEST(Components, ARuleThatIsBrokenIsNamedWithItsPlaceInTheFile) {
  const auto acme = PluginManifest::parse(
      "schema = 1\nname = \"test\"\nversion = \"1.0\"\nabi = { plugin = \"1.0\", torch = { tier = \"none\" } }\n"
      "[[components]]\nkind = \"scheduler\"\ntype = \"Acme\"\n"
      "params.warmup_updates = { type = \"integer\", default = 5 }\n"
      "params.total_updates = { type = \"integer\", required = true }\n"
      "rules = [{ check = \"warmup_updates <= total_updates\", "
      "message = \"{warmup_updates} is more than total_updates, {total_updates}.\" }]\n",
      "acme.so");
  ConfigText text;
  text.source = "c.json";
  text.text =
      "{\"train_batch_size\": 8, \"gradient_clipping\": 1.0,\n \"scheduler\": {\"type\": \"Acme\", \"params\": {\n"
      "   \"total_updates\": 10,\n   \"warmup_updates\": 20}}}";
  const ConfigReading reading = read_config(text, {}, PluginIndex::of({{"acme.so", acme}}));
  std::vector<std::string> problems;
  for (const Problem& problem : reading.problems.all()) problems.push_back(problem.text(text.source));
  EXPECT_THAT(problems, ElementsAre("c.json:4:4: scheduler.params.warmup_updates: 20 is more than total_updates, 10."));
  EXPECT_FALSE(reading.config);
}

TEST(Components, ARegularExpressionThatAStateTakesIsCheckedWhenTheFileIsRead) {
  const auto acme = PluginManifest::parse(
      "schema = 1\nname = \"test\"\nversion = \"1.0\"\nabi = { plugin = \"1.0\", torch = { tier = \"none\" } }\n"
      "[[components]]\nkind = \"optimizer\"\ntype = \"Acme\"\ntraits = [\"cpu\"]\n"
      "params.names = { type = \"string[]\", default = [\"emb\"] }\n"
      "state = [{ name = \"s\", when_names = \"names\" }, { name = \"t\", when_names = \"names\" }]\n",
      "acme.so");
  ConfigText text;
  text.source = "c.json";
  text.text =
      R"({"train_batch_size": 8, "gradient_clipping": 1.0,
 "optimizer": {"type": "Acme", "params": {"names": ["emb", "("]}}})";
  const ConfigReading reading = read_config(text, {}, PluginIndex::of({{"acme.so", acme}}));
  std::vector<std::string> problems;
  for (const Problem& problem : reading.problems.all()) problems.push_back(problem.text(text.source));
  EXPECT_THAT(problems, ElementsAre("c.json:2:60: optimizer.params.names[1]: \"(\" is not a regular expression."));
}

TEST(Sections, AComponentOfAKindThatNoSectionChoosesIsReported) {
  EXPECT_THAT(read(R"("acme_disk": {"enabled": true})", {plugin("offload", "acme", "acme_disk")}).problems,
              ElementsAre("acme_disk: acme.so: its offload 'acme' cannot be chosen by a section of its own, only "
                          "monitors, observers, compressions and samplers can. Ask the plugin's author."));
}

TEST(Sections, ANestedSectionThatTheLanguageDoesNotHaveIsReported) {
  EXPECT_THAT(
      read(R"("steps_per_print": 10)", {plugin("observer", "acme", "acme.rows")}).problems,
      ElementsAre("acme.rows: acme.so: its observer 'acme' is never chosen: there is no such section. A section "
                  "of a plugin's own stands at the top of a configuration."));
}

TEST(Sections, ASectionThatTheCoreCarriesOutChoosesNoPluginAndSaysSo) {
  constexpr const char* kAio = R"("aio": {"queue_depth": 16})";
  const std::string never =
      "aio: acme.so: its observer 'acme' is never chosen by this section, which switches on no "
      "observer, and gets none of its keys. List it in capstan.observers, with parameters of its "
      "own.";
  EXPECT_THAT(
      read(kAio, {plugin("observer", "acme", "aio", takes({"queue_depth"}))}).problems,
      ElementsAre(never, "aio: has no effect in this run: neither offload_optimizer nor offload_param is on nvme."));
  EXPECT_THAT(read(R"("capstan": {"observers": [{"type": "acme"}]})", {plugin("observer", "acme", "aio")}).problems,
              ElementsAre(never));
  EXPECT_THAT(read(R"("steps_per_print": 20)", {plugin("observer", "acme", "aio")}).problems, IsEmpty());
}

TEST(Sections, ASectionThatSwitchesOnPluginsOfAnotherKindSaysSo) {
  EXPECT_THAT(read(R"("autotuning": {"enabled": false})", {plugin("offload", "acme", "autotuning")}).problems,
              ElementsAre("autotuning: acme.so: its offload 'acme' is never chosen by this section, which switches on "
                          "no offload, and gets none of its keys."));
}

TEST(Sections, AreShippedWhenAPluginOfThisReleaseCarriesThemOut) {
  ::unsetenv("CAPSTAN_PLUGIN_PATH");
  const PluginIndex bundled = PluginIndex::scan();
  for (const SwitchedSection& section : switched_sections()) {
    EXPECT_EQ(section.shipped, carrier(bundled, section) != nullptr) << section.section;
    EXPECT_NE(find_key(section.section), nullptr) << section.section;
    EXPECT_NE(find_key(section.switch_path), nullptr) << section.switch_path;
  }
}

/// torch and DeepSpeed take it, for a group that is not to move. Not so torch's SparseAdam; ZeroOneAdam and Muon divide
/// by rates.
TEST(Components, BundledOptimizersTakeARateOf0WhereTorchDoes) {
  namespace fs = std::filesystem;
  const std::set<std::string> positive = {"SparseAdam", "ZeroOneAdam", "Muon"};
  std::size_t optimizers = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(CAPSTAN_TEST_SOURCE_DIR) / "plugins/optimizers")) {
    const fs::path file = entry.path() / "plugin.toml";
    if (!fs::exists(file)) continue;
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    // The build adds these lines.
    const auto manifest =
        PluginManifest::parse("abi.plugin = \"1.0\"\nabi.torch.tier = \"none\"\n" + text, file.string());
    for (const ComponentManifest& component : manifest.components) {
      for (const KeySpec& spec : component.params) {
        if (spec.name != "lr") continue;
        ++optimizers;
        EXPECT_EQ(convert(Json(0), spec).value.has_value(), !positive.contains(component.type)) << component.type;
      }
    }
  }
  EXPECT_GE(optimizers, 19u);
}

}  // namespace
}  // namespace capstan
