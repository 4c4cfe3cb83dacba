#include "core/config/resolve/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/config/resolve/launcher_world.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHead = R"(schema = 1
name = "test"
version = "1.0"
[abi]
capstan = "1.2"
[abi.torch]
tier = "none"
)";

IndexedPlugin plugin(const std::string& file, const std::string& components) {
  return {file, PluginManifest::parse(kHead + components, file)};
}

const std::string kOptimizers = R"(
[[components]]
kind = "optimizer"
type = "Adam"
traits = ["elementwise", "cpu"]
[components.params]
lr = { type = "number", default = 1e-3 }
[[components]]
kind = "optimizer"
type = "Lion"
traits = ["elementwise", "cpu"]
[[components]]
kind = "observer"
type = "watcher"
attach = ["events"]
[[components]]
kind = "compression"
type = "squeeze"
)";
const std::string kCuda = R"(
[[components]]
kind = "accelerator"
type = "cuda"
[[components]]
kind = "optimizer"
device = "cuda"
type = "Adam"
traits = ["elementwise", "cuda"]
[components.params]
lr = { type = "number", default = 1e-3 }
)";

PluginIndex with_cuda() { return PluginIndex::of({plugin("cpu.so", kOptimizers), plugin("cuda.so", kCuda)}); }
PluginIndex without_cuda() { return PluginIndex::of({plugin("cpu.so", kOptimizers)}); }

ConfigReading read(const std::string& more, const PluginIndex& plugins = with_cuda(), int world = 1) {
  ConfigContext context;
  context.world_size = world;
  context.check_only = true;
  return read_config({"{\"train_batch_size\": 4, \"gradient_clipping\": 1.0" + more + "}", "test.json", false}, context,
                     plugins);
}

std::string errors(const ConfigReading& reading) {
  std::string text;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) text += problem.path + ": " + problem.message + "\n";
  }
  return text;
}

const std::string kOnCuda = R"(, "capstan": {"run": {"device": "cuda"}})";

TEST(Device, IsTheCpuWherePluginOrGpuIsMissing) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  EXPECT_EQ(read("").config->device, "cpu");
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  EXPECT_EQ(read("", without_cuda()).config->device, "cpu");
}

TEST(Device, IsAGpuOfItselfWhereThePluginIsInstalledAndTheDriverShowsOne) {
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  EXPECT_EQ(read("").config->device, visible_gpus() > 0 ? "cuda" : "cpu");
}

TEST(Device, ChoosesTheOptimizersBuildForIt) {
  const auto on_cuda = read(kOnCuda + R"(, "optimizer": {"type": "adam"})");
  ASSERT_TRUE(on_cuda.config) << errors(on_cuda);
  EXPECT_EQ(on_cuda.config->device, "cuda");
  EXPECT_EQ(on_cuda.config->optimizer->device, "cuda");

  const auto on_cpu = read(R"(, "capstan": {"run": {"device": "cpu"}}, "optimizer": {"type": "adam"})");
  EXPECT_EQ(on_cpu.config->optimizer->device, "cpu");
}

TEST(Device, NamesTheOptimizersThatHaveABuildForIt) {
  EXPECT_THAT(errors(read(kOnCuda + R"(, "optimizer": {"type": "Lion"})")),
              HasSubstr("optimizer.type: no plugin provides an optimizer 'Lion' for this device, only for cpu. "
                        "Available: Adam."));
  EXPECT_THAT(errors(read(kOnCuda + R"(, "optimizer": {"type": "Lion"})")),
              HasSubstr("Or train on the CPU: --device cpu."));
}

TEST(Device, SaysThatItsPluginIsMissing) {
  const std::string text = errors(read(kOnCuda, without_cuda()));

  EXPECT_THAT(text, HasSubstr("capstan.run.device: no plugin provides an accelerator 'cuda'. Available: none."));
  EXPECT_THAT(text, HasSubstr("It is built where a CUDA toolkit is found. Or train on the CPU: --device cpu."));
}

TEST(Device, RefusesWhatIsNotCarriedOutThere) {
  EXPECT_THAT(errors(read(kOnCuda + R"(, "zero_optimization": {"stage": 3})", with_cuda(), 2)),
              HasSubstr("zero_optimization.stage: stage 3 is not carried out on cuda in this release, where parameters "
                        "that come and go live in host memory. Set it to 0, 1 or 2. Or train on the CPU: "
                        "--device cpu."));
  EXPECT_THAT(errors(read(kOnCuda + R"(, "optimizer": {"type": "Adam"},
                          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})",
                          with_cuda(), 2)),
              HasSubstr("zero_optimization.offload_optimizer.device: 'cpu' is not carried out on cuda in this release: "
                        "optimizers update on the device. Remove the section."));
  EXPECT_THAT(errors(read(R"(, "capstan": {"run": {"device": "cuda"}, "observers": [{"type": "watcher"}]})")),
              HasSubstr("observer 'watcher' is made for the CPU, and this run is on cuda. Switch it off."));
  EXPECT_THAT(errors(read(R"(, "capstan": {"run": {"device": "cuda"}, "compressions": [{"type": "squeeze"}]})")),
              HasSubstr("capstan.compressions[0].type: compression 'squeeze' works in host memory, and this run is on "
                        "cuda. Switch it off."));
}

TEST(Device, CarriesOutStagesUpToTwo) {
  for (const char* stage : {"0", "1", "2"}) {
    const auto reading = read(
        kOnCuda + R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": )" + stage + "}", with_cuda(), 2);
    EXPECT_TRUE(reading.config) << errors(reading);
  }
}

}  // namespace
}  // namespace capstan
