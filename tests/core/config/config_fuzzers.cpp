#include "tests/core/config/config_fuzzers.hpp"

#include <cstdio>
#include <cstdlib>

#include "core/config/config.hpp"
#include "core/config/tools/upgrade.hpp"
#include "core/errors.hpp"
#include "core/text/relaxed.hpp"
#include "core/text/toml.hpp"

namespace capstan::testing {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

constexpr const char* kManifest = R"(
schema = 1
name = "fuzz"
version = "1.0.0"
abi.plugin = "1.0"
abi.torch.tier = "none"
[[components]]
kind = "optimizer"
type = "Adam"
traits = ["elementwise", "cpu"]
params.lr = {type = "number", default = 1e-3, min = 0}
params.betas = {type = "number[2]", default = [0.9, 0.999], min = 0, exclusive_max = 1}
[[components]]
kind = "scheduler"
type = "WarmupLR"
params.warmup_max_lr = {type = "number", per_group = true}
params.warmup_type = {type = "string", default = "log", choices = ["log", "linear"]}
[[components]]
kind = "observer"
type = "probe"
section = "probe"
params.every = {type = "integer", default = 1, min = 1}
)";

const PluginIndex& components() {
  static const PluginIndex index = PluginIndex::of({{"fuzz.toml", PluginManifest::parse(kManifest, "fuzz.toml")}});
  return index;
}

}  // namespace

void fuzz_json(std::string_view text) {
  Problems problems;
  const auto value = parse_relaxed(text, problems);
  require(value || problems.has_errors(), "refused without an error");
  if (!value) return;
  require(value->is_object(), "the root is an object");
  if (problems.has_errors()) return;
  try {
    Problems again;
    require(parse_relaxed(upgrade_text({std::string(text), "fuzz", false}).text, again).has_value(),
            "upgraded text is readable");
  } catch (const ConfigError&) {
    // Old and new spellings contradict each other.
  }
}

void fuzz_toml(std::string_view text) {
  try {
    require(parse_toml(text, "fuzz").is_object(), "the root is a table");
  } catch (const ConfigError&) {
  }
}

void fuzz_validator(std::string_view text) {
  ConfigContext context;
  context.check_only = true;
  context.world_known = text.size() % 2 == 0;
  context.world_size = 8;
  const ConfigReading reading = read_config({std::string(text), "fuzz", false}, context, components());
  require(reading.config.has_value() != reading.problems.has_errors(), "a configuration or errors, not both");
}

}  // namespace capstan::testing
