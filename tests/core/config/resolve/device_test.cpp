#include "core/config/resolve/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/config/config.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/config/tools/gpu_verdict.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHead = R"(schema = 1
name = "test"
version = "1.0"
[abi]
plugin = "1.0"
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
kind = "observer"
type = "everywhere"
devices = "any"
attach = ["events"]
[[components]]
kind = "compression"
type = "squeeze"
[[components]]
kind = "offload"
type = "nvme"
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
/// A stranger's device, for which there is one optimizer.
PluginIndex with_npu() {
  std::string npu = kCuda;
  npu.erase(npu.find(", \"cuda\"]"), 8);
  for (std::size_t at = 0; (at = npu.find("cuda", at)) != std::string::npos;) npu.replace(at, 4, "npu");
  return PluginIndex::of({plugin("cpu.so", kOptimizers), plugin("npu.so", npu)});
}
PluginIndex without_cuda() { return PluginIndex::of({plugin("cpu.so", kOptimizers)}); }

ConfigText text_with(const std::string& more) {
  return {"{\"train_batch_size\": 4, \"gradient_clipping\": 1.0" + more + "}", "test.json", false};
}

ConfigContext context_of(int world, bool check_only = true) {
  ConfigContext context;
  context.world_size = world;
  context.check_only = check_only;
  return context;
}

ConfigReading read(const std::string& more, const PluginIndex& plugins = with_cuda(), int world = 1) {
  return read_config(text_with(more), context_of(world), plugins);
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
  const std::string text = errors(read_config(text_with(kOnCuda), context_of(1, false), without_cuda()));

  EXPECT_THAT(text, HasSubstr("capstan.run.device: no plugin provides an accelerator 'cuda'. Available: none."));
  EXPECT_THAT(text, HasSubstr("It is built where a CUDA toolkit is found. Or train on the CPU: --device cpu."));
}

TEST(Device, IsAnyAcceleratorThatIsInstalled) {
  const std::string on_npu = R"(, "capstan": {"run": {"device": "npu"}, "observers": [{"type": "everywhere"}]})";
  const ConfigReading reading = read(on_npu + R"(, "optimizer": {"type": "Adam"})", with_npu());
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->device, "npu");
  EXPECT_EQ(reading.config->optimizer->device, "npu");
  EXPECT_THAT(errors(read(on_npu + R"(, "optimizer": {"type": "Lion"})", with_npu())),
              HasSubstr("no plugin provides an optimizer 'Lion' for this device, only for cpu. Available: Adam."));
}

TEST(Device, NamesTheDevicesThatThereAre) {
  const auto asked = [](const std::string& device, const PluginIndex& plugins) {
    return errors(read(R"(, "capstan": {"run": {"device": ")" + device + "\"}}", plugins));
  };
  EXPECT_THAT(asked("tpu", with_npu()),
              HasSubstr("capstan.run.device: no plugin provides an accelerator 'tpu'. Did you "
                        "mean 'npu' (test 1.0)? Available: npu. Or train on the CPU: "
                        "--device cpu."));
  EXPECT_THAT(asked("gpu", without_cuda()), HasSubstr("no plugin provides an accelerator 'gpu'. Available: none. Did "
                                                      "you mean 'cuda'? Or train on the CPU: --device cpu."));
  EXPECT_THAT(asked("cpus", without_cuda()), HasSubstr("Did you mean 'cpu'?"));
}

TEST(Device, HasTheObserversThatRunOnAnyDevice) {
  for (const char* device : {"cpu", "cuda"}) {
    const auto reading = read(
        std::string(R"(, "capstan": {"observers": [{"type": "everywhere"}], "run": {"device": ")") + device + "\"}}");
    EXPECT_TRUE(reading.config) << errors(reading);
  }
}

TEST(Device, RefusesWhatDoesNotRunThere) {
  EXPECT_THAT(errors(read(kOnCuda + R"(, "zero_optimization": {"stage": 3})", with_cuda(), 2)),
              HasSubstr("zero_optimization.stage: stage 3 does not run on cuda in this release, where parameters "
                        "that come and go live in host memory. Set it to 0, 1 or 2. Or train on the CPU: "
                        "--device cpu."));
  EXPECT_THAT(errors(read(kOnCuda + R"(, "optimizer": {"type": "Adam"},
                          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})",
                          with_cuda(), 2)),
              HasSubstr("zero_optimization.offload_optimizer.device: 'cpu' does not run on cuda in this release: "
                        "optimizers update on the device. Remove the section."));
  EXPECT_THAT(errors(read(R"(, "capstan": {"run": {"device": "cuda"}, "observers": [{"type": "watcher"}]})")),
              HasSubstr("observer 'watcher' is made for the CPU, and this run is on cuda. Switch it off."));
  EXPECT_THAT(errors(read(R"(, "capstan": {"run": {"device": "cuda"}, "compressions": [{"type": "squeeze"}]})")),
              HasSubstr("capstan.compressions[0].type: compression 'squeeze' works in host memory, and this run is on "
                        "cuda. Switch it off."));
}

TEST(Device, NeedsNoPluginWhereAFileIsOnlyChecked) {
  const ConfigReading reading = read(kOnCuda + R"(, "optimizer": {"type": "Lion"})", without_cuda());
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->device, "cuda");
  EXPECT_EQ(
      reading.problems.all().front().message,
      "the plugin for cuda is not installed here, so this is checked without it: types of optimizers are those of "
      "the CPU, of which cuda may have fewer.");
  EXPECT_THAT(errors(read(kOnCuda + R"(, "zero_optimization": {"stage": 3})", without_cuda(), 2)),
              HasSubstr("stage 3 does not run on cuda"));
}

/// Of each offload, at every stage and for one and two processes: one error, which names the device.
TEST(Device, GivesOneErrorForOneFault) {
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    for (const char* place : {"cpu", "nvme"}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const int world : {1, 2}) {
          const std::string zero = R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": )" +
                                   std::to_string(stage) + ", \"" + section + R"(": {"device": ")" + place +
                                   R"(", "nvme_path": "/tmp"}})";
          SCOPED_TRACE(zero + " " + std::to_string(world));
          std::string text;
          const ConfigReading reading = read(kOnCuda + zero, with_cuda(), world);
          for (const Problem& problem : reading.problems.all()) {
            if (problem.severity != Problem::Severity::kError || problem.path == "zero_optimization.stage") continue;
            text += problem.path + ": " + problem.message + "\n";
          }
          const std::string reason = std::string(section) == "offload_param" ? "parameters stay on the device."
                                                                             : "optimizers update on the device.";
          const std::string expected = std::string("zero_optimization.") + section + ".device: '" + place +
                                       "' does not run on cuda in this release: " + reason +
                                       " Remove the section. Or train on the CPU: --device cpu.\n";
          EXPECT_EQ(text, expected);
        }
      }
    }
  }
}

TEST(Device, TellsWhatGpusWouldRefuseWhereNoneIsHere) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  const auto verdict = [](const std::string& more, int world) {
    const ConfigReading here = read(more, with_cuda(), world);
    EXPECT_TRUE(here.config) << errors(here);
    const auto problem = refused_on_gpus(text_with(more), context_of(world), *here.config, with_cuda());
    return problem ? problem->path + ": " + problem->message : "";
  };
  const std::string refused =
      R"(, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}})";
  EXPECT_EQ(verdict(refused, 2),
            "capstan.run.device: no GPU is visible here, so this is checked for CPUs. GPUs would refuse optimizer.type "
            "\"Lion\", zero_optimization.stage 3 and zero_optimization.offload_optimizer.device \"cpu\": --device cuda "
            "shows the reasons.");
  EXPECT_EQ(verdict(refused, 1), "");
  EXPECT_EQ(verdict(refused + R"(, "capstan": {"run": {"device": "cpu"}})", 2), "");
  EXPECT_EQ(verdict(R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2})", 2), "");
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
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
