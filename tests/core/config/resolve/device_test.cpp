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
[[components]]
kind = "offload"
type = "cpu"
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

std::string notices(const ConfigReading& reading) {
  std::string text;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kNotice) text += problem.path + ": " + problem.message + "\n";
  }
  return text;
}

TEST(Device, HasTheOptimizerUpdateInHostMemoryWhereItHasNoBuildForIt) {
  const ConfigReading reading = read(kOnCuda + R"(, "optimizer": {"type": "Lion"})");
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->device, "cuda");
  EXPECT_EQ(reading.config->optimizer->device, "cpu");
  EXPECT_THAT(notices(reading), HasSubstr("optimizer.type: no plugin provides an optimizer 'Lion' for cuda, so that it "
                                          "updates in host memory: gradients are copied there, and parameters back, "
                                          "once a step."));
  EXPECT_THAT(errors(read(kOnCuda + R"(, "optimizer": {"type": "Lyon"})")),
              HasSubstr("Or train on the CPU: --device cpu."));
}

TEST(Device, HasTheOptimizerUpdateInHostMemoryWhereItsStatesAreOffloaded) {
  for (const char* zero : {R"({"stage": 1, "offload_optimizer": {"device": "cpu"}})",
                           R"({"stage": 3, "offload_param": {"device": "cpu"}})"}) {
    const ConfigReading reading =
        read(kOnCuda + R"(, "optimizer": {"type": "Adam"}, "zero_optimization": )" + zero, with_cuda(), 2);
    ASSERT_TRUE(reading.config) << errors(reading);
    EXPECT_EQ(reading.config->optimizer->device, "cpu") << zero;
    EXPECT_EQ(notices(reading).find("no effect"), std::string::npos) << notices(reading);
  }
}

TEST(Device, HasTheOptimizerUpdateInHostMemoryWhereCompressionsWork) {
  const std::string squeezed = R"(, "capstan": {"run": {"device": "cuda"}, "compressions": [{"type": "squeeze"}]})";
  const ConfigReading reading = read(squeezed + R"(, "optimizer": {"type": "Adam"})");
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->optimizer->device, "cpu");
  EXPECT_THAT(notices(reading), HasSubstr("optimizer.type: compressions read master values in host memory, so that "
                                          "optimizer 'Adam' updates there."));
  EXPECT_THAT(
      errors(read(squeezed)),
      HasSubstr("capstan.compressions[0].type: compression 'squeeze' works in host memory, where no optimizer of "
                "this run updates. Choose an optimizer that has a build for the CPU, or switch it off."));
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
  EXPECT_EQ(read(on_npu + R"(, "optimizer": {"type": "Lion"})", with_npu()).config->optimizer->device, "cpu");
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
  EXPECT_THAT(errors(read(R"(, "capstan": {"run": {"device": "cuda"}, "observers": [{"type": "watcher"}]})")),
              HasSubstr("observer 'watcher' is made for the CPU, and this run is on cuda. Switch it off."));
}

TEST(Device, NeedsNoPluginWhereAFileIsOnlyChecked) {
  const ConfigReading reading = read(kOnCuda + R"(, "optimizer": {"type": "Lion"})", without_cuda());
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->device, "cuda");
  EXPECT_EQ(reading.problems.all().front().message,
            "the plugin for cuda is not installed here, so this is checked without it.");
}

/// Each offload, at every stage and for one and two processes.
TEST(Device, TakesWhatTheCpuTakes) {
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    for (const char* place : {"cpu", "nvme"}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const int world : {1, 2}) {
          const std::string zero = R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": )" +
                                   std::to_string(stage) + ", \"" + section + R"(": {"device": ")" + place +
                                   R"(", "nvme_path": "/tmp"}})";
          EXPECT_EQ(errors(read(kOnCuda + zero, with_cuda(), world)), errors(read(zero, with_cuda(), world)))
              << zero << " " << world;
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
  const std::string watched = R"(, "capstan": {"observers": [{"type": "watcher"}])";
  EXPECT_EQ(verdict(watched + "}", 2),
            "capstan.run.device: no GPU is visible here, so this is checked for CPUs. GPUs would refuse "
            "capstan.observers[0].type: --device cuda shows the reasons.");
  EXPECT_EQ(verdict(watched + R"(, "run": {"device": "cpu"}})", 2), "");
  EXPECT_EQ(verdict(R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2})", 2), "");
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

TEST(Device, TrainsAtEveryStage) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const auto reading = read(
        kOnCuda + R"(, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": )" + stage + "}", with_cuda(), 2);
    EXPECT_TRUE(reading.config) << errors(reading);
  }
}

}  // namespace
}  // namespace capstan
