// The accelerator on a GPU, or with CAPSTAN_TEST_EMULATED on the emulated device of type "cuda". Skipped where neither
// is.

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/components/host.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/memory/plugin_accelerator.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/registry/host.hpp"
#include "tests/cli/programs.hpp"

namespace capstan {
namespace {

const bool kEmulated = std::getenv("CAPSTAN_TEST_EMULATED") != nullptr;
constexpr const char* kEmulatedFolder = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/emulated";

PluginIndex build_plugins() {
  std::vector<std::pair<std::filesystem::path, std::string>> folders;
  if (kEmulated) folders.emplace_back(kEmulatedFolder, "the emulated device");
  folders.emplace_back(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins", "the build");
  return PluginIndex::scan(folders);
}

int gpus() { return kEmulated ? 4 : visible_gpus(); }

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "this machine has no NVIDIA GPU";
    try {
      cuda_ = std::make_unique<PluginAccelerator>(
          registry_.create("test", "accelerator", "cuda", Json::object(), model_host()), 0);
    } catch (const std::exception& error) {
      GTEST_SKIP() << error.what();
    }
  }

  at::Tensor on_device(const at::Tensor& tensor) const { return tensor.to(cuda_->device()); }

  PluginIndex plugins_ = build_plugins();
  Registry registry_{plugins_};
  std::unique_ptr<PluginAccelerator> cuda_;
};

TEST_F(Cuda, AllocatesThereAndCountsIt) {
  constexpr std::int64_t kBytes = 64 << 20;
  const DeviceMemory before = cuda_->memory();
  const at::Tensor tensor = cuda_->allocate({kBytes / 4}, at::kFloat);
  const DeviceMemory after = cuda_->memory();

  EXPECT_EQ(tensor.device(), cuda_->device());
  EXPECT_EQ(after.in_use, before.in_use + kBytes);
  EXPECT_GE(after.peak, after.in_use);
  EXPECT_GT(after.total, after.peak);
}

TEST_F(Cuda, CopiesAndConvertsAsTheHostDoes) {
  const at::Tensor values = at::randn({10'007});
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    at::Tensor there = cuda_->allocate({10'007}, type);
    cuda_->copy(there, values);
    EXPECT_TRUE(at::equal(there.cpu(), values.to(type))) << type;
  }
}

TEST_F(Cuda, TakesATensorOfTheHostWithTheValuesThatItHas) {
  const at::Tensor host = at::randn({1 << 20}), kept = host.clone();
  const at::Tensor there = cuda_->upload(host);
  host.zero_();

  EXPECT_EQ(there.device(), cuda_->device());
  EXPECT_TRUE(at::equal(there.cpu(), kept));
}

TEST_F(Cuda, EventsStandInTheOrderOfTheWork) {
  const auto first = cuda_->record();
  at::Tensor product = on_device(at::randn({512, 512}));
  for (int i = 0; i < 10; ++i) product = at::matmul(product, product).mul_(1e-3);
  const auto last = cuda_->record();

  EXPECT_GT(last->milliseconds_since(*first), 0);
  EXPECT_LT(first->milliseconds_since(*last), 0);
}

TEST_F(Cuda, ALinkOfOneProcessCarriesMessagesToItself) {
  const auto link = cuda_->links()->connect(cuda_->links()->new_id(), 0, 1);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kByte, at::kLong}) {
    const at::Tensor sent = on_device(at::randn({1001}).mul(10).to(type));
    const at::Tensor first = at::empty_like(sent), second = at::empty_like(sent);
    const auto exchange = link->start({{0, sent}, {0, sent}}, {{0, first}, {0, second}});
    EXPECT_TRUE(exchange->wait());
    EXPECT_GE(exchange->milliseconds().value(), 0);
    EXPECT_TRUE(at::equal(first.cpu(), sent.cpu())) << type;
    EXPECT_TRUE(at::equal(second.cpu(), sent.cpu())) << type;
  }
}

TEST_F(Cuda, GivesUpALinkWhoseOtherEndDoesNotCome) {
  int asked = 0;
  const auto connect = [&] { cuda_->links()->connect(cuda_->links()->new_id(), 0, 2, [&] { return ++asked == 3; }); };
  EXPECT_THAT(connect,
              testing::ThrowsMessage<PluginError>(testing::HasSubstr("not all processes of the group have come.")));
  EXPECT_EQ(asked, 3);
}

TEST_F(Cuda, SaysThatALinkHasNoSuchId) { EXPECT_THROW(cuda_->links()->connect("12ab", 0, 1), PluginError); }

TEST_F(Cuda, SumsSquaresAsTheHostDoes) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = at::randn({300'003}).to(type), there = on_device(values);
    const double expected = sum_of_squares({&values}).exact;
    EXPECT_NEAR(sum_of_squares({&there}).exact, expected, 1e-13 * expected);
  }
}

/// Three parameters after some updates with the same gradients, brought to the host.
std::vector<at::Tensor> updated(Registry& registry, const std::string& type, const std::string& params,
                                const Accelerator& accelerator, at::ScalarType compute) {
  EngineHostContext context;
  context.accelerator = &accelerator;
  capstan_host host = make_host();
  host.ctx = &context;
  add_engine_functions(host);
  const std::string device = accelerator.is_host() ? "cpu" : "cuda";

  at::manual_seed(11);
  std::vector<NamedTensor> parameters;
  for (const std::int64_t numel : {1, 1000, 70'001}) {
    at::Tensor values = at::randn({numel}).to(accelerator.device());
    parameters.push_back({"p" + std::to_string(numel), values.requires_grad_(true)});
  }
  const ComponentChoice choice{"optimizer", type, Json::parse(params), "test", device};
  const Component optimizer = registry.create("test", "optimizer", type, choice.params, &host, device);
  const ParameterGroups groups(parameters, choice, {});
  ParameterStore::Options options;
  options.compute_dtype = options.accumulation_dtype = compute;
  options.states = optimizer.manifest().state;
  options.state_dtype = [](const StateSpec& spec) { return spec.dtype == "int64" ? at::kLong : at::kFloat; };
  ParameterStore store(parameters, groups, accelerator, std::move(options));

  for (int update = 0; update < 20; ++update) {
    for (const NamedTensor& named : parameters) {
      at::Tensor parameter = named.tensor;
      parameter.mutable_grad() = at::randn(parameter.sizes()).to(compute).to(accelerator.device());
    }
    store.collect_gradients();
    capstan_step step{};
    step.struct_size = sizeof step;
    step.update_index = update;
    step.grad_scale = 0.7;
    step.groups = groups.pointers().data();
    step.group_count = groups.size();
    for (const SubGroup& sub_group : store.sub_groups()) {
      const auto& slots = store.slots(sub_group);
      call_plugin("test", [&](capstan_error* error) {
        return optimizer.vtable<capstan_optimizer>()->update(optimizer.self(), slots.data(), slots.size(), &step,
                                                             nullptr, error);
      });
      store.refresh(sub_group, update);
    }
    store.drop_gradients(/*applied=*/true);
  }
  std::vector<at::Tensor> values;
  for (const ParameterEntry& entry : store.entries()) {
    values.push_back(entry.master.cpu());
    values.push_back(entry.compute.cpu());
  }
  return values;
}

constexpr const char* kAdam =
    R"({"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1, "adam_w_mode": true, "torch_adam": false,
        "bias_correction": true, "amsgrad": false, "set_grad_none": true, "fp32_optimizer_states": true})";
constexpr const char* kAmsGrad =
    R"({"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1, "adam_w_mode": false, "torch_adam": true,
        "bias_correction": true, "amsgrad": true, "set_grad_none": true, "fp32_optimizer_states": true})";
constexpr const char* kSgd =
    R"({"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": true})";
constexpr const char* kPlainSgd =
    R"({"lr": 0.01, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.1, "nesterov": false})";

TEST_F(Cuda, OptimizersRoundAsOnTheHost) {
  const CpuAccelerator cpu;
  const std::pair<const char*, const char*> cases[] = {
      {"AdamW", kAdam}, {"Adam", kAdam}, {"Adam", kAmsGrad}, {"SGD", kSgd}, {"SGD", kPlainSgd}};
  for (const auto& [type, params] : cases) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto here = updated(registry_, type, params, cpu, compute);
      const auto there = updated(registry_, type, params, *cuda_, compute);
      for (std::size_t i = 0; i < here.size(); ++i) {
        EXPECT_TRUE(at::equal(there[i], here[i])) << type << " " << params << " " << compute << ", tensor " << i;
      }
    }
  }
}

/// The losses of `capstan train` on the tests' text, step by step.
std::vector<double> losses(const std::vector<std::string>& more, const std::vector<std::string>& launcher = {}) {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", R"({
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "csv_monitor": {"enabled": true, "output_path": "metrics", "job_name": "run"},
    "capstan": {"model": "gpt:tiny"}})");
  write_bytes(folder / "text.txt", cli::some_text());
  std::vector<std::string> words = launcher;
  for (const char* word : {"train", "--config", "config.json", "--data", "text.txt", "--steps", "20", "--seed", "3"}) {
    words.emplace_back(word);
  }
  words.insert(words.end(), more.begin(), more.end());
  if (kEmulated) words.insert(words.end(), {"--plugin-path", kEmulatedFolder});
  const ProcessResult result = cli::run_capstan(folder, words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream rows(read_bytes(folder / "metrics/run/Train_Samples_train_loss.csv"));
  std::vector<double> values;
  std::string row;
  std::getline(rows, row);  // the heading
  while (std::getline(rows, row)) values.push_back(std::stod(row.substr(row.find(',') + 1)));
  return values;
}

/// Backward of attention and embeddings adds in any order there, so the last bits differ from run to run.
void expect_near(const std::vector<double>& losses, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], tolerance) << "step " << i;
}

TEST_F(Cuda, TrainsAsTheHostDoes) {
  const auto here = losses({"--device", "cpu"});
  ASSERT_EQ(here.size(), 20u);
  expect_near(losses({"--device", "cuda"}), here, 2e-3);
}

TEST_F(Cuda, TrainsInSixteenBitsAsInThirtyTwo) {
  const auto exact = losses({"--device", "cuda"});
  expect_near(losses({"--device", "cuda", "--set", "bf16.enabled=true"}), exact, 0.05);
  expect_near(losses({"--device", "cuda", "--set", "fp16.enabled=true", "--set", "fp16.initial_scale_power=8"}), exact,
              0.05);
}

TEST_F(Cuda, TrainsOnTwoAsOnOneAtEveryStage) {
  if (gpus() < 2) GTEST_SKIP() << "this machine has one GPU";
  const std::vector<std::string> two = {"launch", "-n", "2"};
  const auto alone = losses({"--device", "cuda"});
  expect_near(losses({"--device", "cuda"}, two), alone, 2e-3);
  for (const char* stage : {"zero_optimization.stage=1", "zero_optimization.stage=2"}) {
    expect_near(losses({"--device", "cuda", "--set", stage}, two), alone, 2e-3);
    expect_near(losses({"--device", "cuda", "--set", stage, "--set", "zero_optimization.overlap_comm=true"}, two),
                alone, 2e-3);
  }
}

TEST_F(Cuda, ExchangesOneBitAnElementBetweenTwo) {
  if (gpus() < 2) GTEST_SKIP() << "this machine has one GPU";
  const std::vector<std::string> two = {"launch", "-n", "2"};
  for (const char* type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    const std::string freeze =
        std::string("optimizer.params.") + (type == std::string("ZeroOneAdam") ? "var_freeze_step=8" : "freeze_step=8");
    for (const char* backend : {"nccl", "gloo"}) {
      const std::vector<std::string> settings = {"--set", std::string("optimizer.type=") + type,
                                                 "--set", freeze,
                                                 "--set", std::string("optimizer.params.comm_backend_name=") + backend};
      std::vector<std::string> here = {"--device", "cpu"}, there = {"--device", "cuda"};
      here.insert(here.end(), settings.begin(), settings.end());
      there.insert(there.end(), settings.begin(), settings.end());
      expect_near(losses(there, two), losses(here, two), 0.05);
    }
  }
}

TEST_F(Cuda, GoesOnAfterResumingAsIfItHadNotStopped) {
  const TemporaryFolder checkpoints;
  const std::string at = (checkpoints / "ckpt").string();
  const auto whole = losses({"--device", "cuda"});
  losses({"--device", "cuda", "--set", "capstan.run.steps=10", "--save", at});
  expect_near(losses({"--device", "cuda", "--resume", at}), {whole.begin() + 10, whole.end()}, 2e-3);
}

}  // namespace
}  // namespace capstan
